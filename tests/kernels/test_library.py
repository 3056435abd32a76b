"""The native library and the sources that it was built from."""

from __future__ import annotations

import pytest

from lmprog_kernels.cpu import NativeUnavailable, available_levels, structs
from lmprog_kernels.cpu.library import Library


@pytest.mark.skipif(not available_levels(), reason="the C++ library is not built here")
def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structs, "ABI", structs.ABI + 1)
    with pytest.raises(NativeUnavailable, match="built from other sources; reinstall lmprog"):
        Library(available_levels()[0])
