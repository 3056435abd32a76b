"""Finds the C++ library for this processor: one is built per instruction set, and the best that runs is used."""

from __future__ import annotations

import ctypes
import functools
import warnings
import zlib
from pathlib import Path

import torch  # noqa: F401  (first: its OpenMP library must be the one that ours shares)

from lmprog_kernels.cpu import structs

_AVX2 = frozenset(("avx2", "fma", "f16c", "bmi2"))
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}

LEVELS: dict[str, frozenset[str]] = {
    "avx512_bf16": _AVX512 | {"avx512_bf16", "avx512_vnni"},
    "avx512": _AVX512,
    "avx2": _AVX2,
}
"""Instruction sets, best first, with the processor flags (as Linux names them) that each needs."""

_ARGUMENTS = {
    "lmk_packed_bytes": (structs.I64, (structs.I32, structs.I32, structs.I32)),
    "lmk_pack": (None, (structs.I32, structs.Pointer, structs.I32, structs.I32, structs.I32, structs.Pointer)),
    "lmk_pack_bias": (None, (structs.Pointer, structs.I32, structs.I32, structs.Pointer)),
    "lmk_linear": (
        ctypes.c_int,
        (ctypes.POINTER(structs.Linear), structs.Pointer, structs.I32, structs.I32, structs.Pointer),
    ),
    "lmk_attention": (ctypes.c_int, (ctypes.POINTER(structs.Attention),)),
    "lmk_decoder_new": (structs.Pointer, (ctypes.POINTER(structs.Model),)),
    "lmk_read_rate": (ctypes.c_double, (structs.Pointer, structs.I64, structs.I32)),
    "lmk_arithmetic_rate": (ctypes.c_double, (structs.I32, structs.I32, structs.I64)),
    "lmk_decoder_free": (None, (structs.Pointer,)),
    "lmk_decoder_step": (
        ctypes.c_int,
        (structs.Pointer, ctypes.POINTER(structs.Step), structs.I32, structs.Pointer),
    ),
    "lmk_sample": (ctypes.c_int, (structs.Pointer, structs.Pointer, structs.I32, structs.I32, structs.I32)),
    "lmk_score_tokens": (ctypes.c_int, (structs.Pointer, structs.I32, structs.I32, structs.I32)),
}


class NativeUnavailable(RuntimeError):
    """The C++ library cannot be used here; the message says why and what to do."""


class Library:
    """The functions of one instruction set. Calls release the interpreter's lock."""

    def __init__(self, level: str) -> None:
        self.level = level
        self.build = zlib.crc32(_path(level).read_bytes())  # differs from build to build
        self.functions = ctypes.CDLL(str(_path(level)))
        if not hasattr(self.functions, "lmk_abi") or self.functions.lmk_abi() != structs.ABI:
            raise NativeUnavailable("The C++ library was built from other sources; reinstall lmprog to build it.")
        for name, (result, arguments) in _ARGUMENTS.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments

    @property
    def panel(self) -> int:
        """Outputs that are packed together: two vectors of float32."""
        return 16 if self.level == "avx2" else 32


def check(status: int) -> None:
    """Raise what a status returned by the library stands for."""
    if status == 1:
        raise MemoryError("There is not enough memory for the buffers of this step; use smaller steps.")
    if status == 2:
        raise ValueError("The attention plan shows a row two keys at one position; each key of a row needs its own.")


def available_levels() -> list[str]:
    """Instruction sets that are built and that this processor has, best first."""
    flags = _processor_flags()
    return [level for level, needed in LEVELS.items() if needed <= flags and _path(level).exists()]


@functools.cache
def load_library(level: str | None = None) -> Library:
    """The best library, or the one of `level`. Raises NativeUnavailable."""
    found = available_levels()
    if level is None and found:
        return Library(found[0])
    if level in found:
        return Library(level)
    if level is not None:
        raise NativeUnavailable(f"There is no C++ library for {level!r} here; available: {', '.join(found) or 'none'}.")
    raise NativeUnavailable(_reason())


@functools.cache
def is_available() -> bool:
    """Whether `load_library()` works. The first answer "no" comes with a warning."""
    try:
        load_library()
    except NativeUnavailable as error:
        warnings.warn(f"{error} The torch executor is used instead, several times slower.", stacklevel=2)
        return False
    return True


def _reason() -> str:
    if not LEVELS["avx2"] <= _processor_flags():
        return "The C++ kernels need an x86-64 processor with AVX2 under Linux."
    return "The C++ kernels were not built; install g++ and reinstall lmprog to build them."


@functools.cache
def _processor_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = (line.partition(":") for line in text.splitlines())
    return next((frozenset(flags.split()) for name, _, flags in lines if name.strip() == "flags"), frozenset())


def _path(level: str) -> Path:
    return Path(__file__).parent / f"_decoder_{level}.so"
