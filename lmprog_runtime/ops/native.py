"""The C++ decoder for CPUs."""

from __future__ import annotations

from lmprog_kernels.cpu import DTYPES as NATIVE_DTYPES
from lmprog_kernels.cpu import Decoder as NativeDecoder
from lmprog_kernels.cpu import (
    NativeUnavailable,
    PackedWeights,
    StaleWeights,
    available_levels,
    load_weights,
    pack_weights,
    save_weights,
)
from lmprog_kernels.cpu import is_available as is_native_available

__all__ = [
    "NATIVE_DTYPES",
    "NativeDecoder",
    "NativeUnavailable",
    "PackedWeights",
    "StaleWeights",
    "available_levels",
    "is_native_available",
    "load_weights",
    "pack_weights",
    "save_weights",
]
