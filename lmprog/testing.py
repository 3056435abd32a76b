"""Fixtures for pytest. They are there as soon as lmprog is installed.

def test_capital(scripted):
    backend = scripted({"capital of France": " Paris"})
    assert capital.run(country="France")["city"] == " Paris"        # the default backend of the test
    assert backend.calls[0].sampling.temperature == 0
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lmprog.backends.scripted import ScriptedBackend


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedBackend]]:
    """Makes a `ScriptedBackend`, the default backend until the test ends. Takes what `ScriptedBackend` takes.

    When the test ends, all streams must have been closed: a program that leaves one open would hold a model's memory.
    """
    from lmprog.backends.scripted import ScriptedBackend
    from lmprog.settings import use_backend

    made: list[ScriptedBackend] = []
    with contextlib.ExitStack() as defaults:

        def make(*args: Any, **kwargs: Any) -> ScriptedBackend:
            made.append(ScriptedBackend(*args, **kwargs))
            defaults.enter_context(use_backend(made[-1]))
            return made[-1]

        yield make
    for backend in made:
        assert not backend.open_streams, f"{backend.open_streams} streams are still open; has a run not been read?"
