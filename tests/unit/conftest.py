"""What several modules of unit tests take."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

import lmprog.compat.sglang


@pytest.fixture
def sgl() -> Iterator[ModuleType]:
    """The stand-in for sglang, for as long as the test runs."""
    lmprog.compat.sglang.install()
    try:
        yield importlib.import_module("sglang")
    finally:
        lmprog.compat.sglang.uninstall()
