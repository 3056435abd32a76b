"""The fast CPU path: one C++ call per step, built for AVX2, AVX-512 and AVX-512 with BF16, chosen at run time.

Everything is batch-invariant: a row's logits have the same bits alone or batched, cold or from cached keys, in one
step or in pieces, and with any number of threads. They differ between instruction sets.
"""

from lmprog_kernels.cpu.decoder import Decoder, PreparedStep, kv_slot_bytes
from lmprog_kernels.cpu.grouped import GroupedMatrix, Matrix, concatenate
from lmprog_kernels.cpu.library import NativeUnavailable, available_levels, is_available, load_library
from lmprog_kernels.cpu.packed_weights import (
    DTYPES,
    PackedWeights,
    StaleWeights,
    load_weights,
    pack_weights,
    save_weights,
)

__all__ = [
    "DTYPES",
    "Decoder",
    "GroupedMatrix",
    "Matrix",
    "NativeUnavailable",
    "PackedWeights",
    "PreparedStep",
    "StaleWeights",
    "available_levels",
    "concatenate",
    "is_available",
    "kv_slot_bytes",
    "load_library",
    "load_weights",
    "pack_weights",
    "save_weights",
]
