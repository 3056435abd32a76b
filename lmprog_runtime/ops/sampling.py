"""The C++ sampler, where its library is built."""

from __future__ import annotations

from functools import cache

from lmprog_kernels.cpu import NativeUnavailable, load_library
from lmprog_kernels.cpu.sampling import NativeSampler, RowState

__all__ = ["NativeSampler", "RowState", "native_sampler"]


@cache
def native_sampler() -> NativeSampler | None:
    """None where the library is not there; the executor has said so."""
    try:
        return NativeSampler(load_library())
    except NativeUnavailable:
        return None
