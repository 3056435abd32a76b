from collections.abc import Iterator

import pytest

from tests.support.tiny_server import Served, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server over a tiny model, shared by a module's tests; each leaves it at rest."""
    with serving() as served:
        yield served
