from collections.abc import Iterator

import pytest

from lmprog import Runtime
from lmprog_runtime.runtime import LocalRuntime
from tests.support.tiny_local import tiny_local


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    local = tiny_local()
    yield local
    local.close()


@pytest.fixture
def backend(runtime: LocalRuntime) -> Runtime:
    """What programs run on; closed with its runtime."""
    return Runtime.over(runtime)
