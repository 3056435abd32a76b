"""Measures what the machine can do at best, in tenths of a second: the floors that step times are compared with."""

from __future__ import annotations

from typing import NamedTuple

from lmprog_kernels.cpu.library import Library
from lmprog_kernels.cpu.packing import Memory
from lmprog_kernels.cpu.structs import FORMATS


class Floors(NamedTuple):
    bytes_per_second: float  # read from memory
    flops_per_second: float  # multiply-adds count twice


class FloorMeter:
    """Keeps a block of memory that is larger than the caches."""

    _BYTES = 1 << 28

    def __init__(self, library: Library, dtype: str, threads: int) -> None:
        self._functions, self._format, self._threads = library.functions, FORMATS[dtype], threads
        self._memory = Memory(self._BYTES)
        self._memory.bytes.fill_(1)

    def measure(self) -> Floors:
        """The better of two passes of each, about 50 ms in all."""
        rounds = 2_000_000
        reads = [self._functions.lmk_read_rate(self._memory.address, self._BYTES, self._threads) for _ in range(2)]
        flops = [self._functions.lmk_arithmetic_rate(self._format, self._threads, rounds) for _ in range(2)]
        return Floors(max(reads), max(flops))
