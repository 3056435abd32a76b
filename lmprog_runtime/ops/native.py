"""The C++ decoder for CPUs."""

from __future__ import annotations

from lmprog_kernels.cpu import DTYPES as NATIVE_DTYPES
from lmprog_kernels.cpu import Decoder as NativeDecoder
from lmprog_kernels.cpu import (
    GroupedMatrix,
    Matrix,
    NativeUnavailable,
    PackedWeights,
    PreparedStep,
    StaleWeights,
    available_levels,
    concatenate,
    kv_slot_bytes,
    load_library,
    load_weights,
    pack_weights,
    save_weights,
)
from lmprog_kernels.cpu import is_available as is_native_available
from lmprog_kernels.cpu.floors import FloorMeter, Floors

__all__ = [
    "NATIVE_DTYPES",
    "FloorMeter",
    "Floors",
    "GroupedMatrix",
    "Matrix",
    "NativeDecoder",
    "NativeUnavailable",
    "PackedWeights",
    "PreparedStep",
    "StaleWeights",
    "available_levels",
    "concatenate",
    "is_native_available",
    "kv_slot_bytes",
    "load_library",
    "load_weights",
    "pack_weights",
    "save_weights",
]
