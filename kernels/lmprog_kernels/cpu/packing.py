"""Weights on their way into the library: padded to multiples of 32, packed, and kept in one block of memory."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor
from torch.nn import functional

from lmprog_kernels.cpu.grouped import GroupedMatrix, Matrix
from lmprog_kernels.cpu.library import Library
from lmprog_kernels.cpu.structs import FORMATS, Linear

MULTIPLE = 32


def round_up(count: int, multiple: int = MULTIPLE) -> int:
    return -(-count // multiple) * multiple


class Memory:
    """A zeroed block outside the interpreter's heap, in huge pages where the system allows. Pages cost nothing until
    they are written."""

    _SLACK = 1 << 12  # kernels may read a vector past the end

    def __init__(self, size: int) -> None:
        # private: shared anonymous memory (the default) gets no huge pages
        self._map = mmap.mmap(-1, size + self._SLACK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._used = 0

    @property
    def address(self) -> int:
        return self.bytes.data_ptr()

    @property
    def used(self) -> int:
        """Bytes from the start that have been taken."""
        return self._used

    def take(self, size: int) -> int:
        """Address of the next `size` bytes, on a cache line."""
        address = self.address + self._used
        self._used += round_up(size, 64)
        return address


class Packer:
    """Packs matrices into one Memory, whose size must have been summed with `packed_bytes` before."""

    def __init__(self, library: Library, memory: Memory) -> None:
        self._functions, self._panel, self._memory = library.functions, library.panel, memory

    def linear(self, weight: Matrix, bias: Tensor | None, dtype: str, *, interleave: bool = False) -> Linear:
        """weight [outputs, inputs]; dtype: what a tensor is kept as. interleave: it holds gates, then values."""
        if interleave:
            weight = pad_outputs(weight, 2)
            bias = None if bias is None else pad_rows(bias, 2)
        if isinstance(weight, GroupedMatrix):
            return self._grouped(weight.map(lambda rows: pad(rows, 0)), bias, interleave)
        source = pad(weight, 0, 1).to(torch.bfloat16 if dtype == "bfloat16" else torch.float32).contiguous()
        rows, columns = source.shape
        panels = self._memory.take(self._functions.lmk_packed_bytes(FORMATS[dtype], rows, columns))
        self._functions.lmk_pack(FORMATS[dtype], source.data_ptr(), rows, columns, interleave, panels)
        return Linear(FORMATS[dtype], rows, columns, 0, panels, self._bias(bias, rows, interleave))

    def _grouped(self, weight: GroupedMatrix, bias: Tensor | None, interleave: bool) -> Linear:
        source = weight.panels(panel=self._panel, interleave=interleave)
        (rows, columns), kind = weight.integers.shape, FORMATS[weight.dtype]
        panels = self._memory.take(source.nbytes)
        ctypes.memmove(panels, source.data_ptr(), source.nbytes)
        return Linear(kind, rows, columns, 0, panels, self._bias(bias, rows, interleave))

    def _bias(self, bias: Tensor | None, rows: int, interleave: bool) -> int | None:
        if bias is None:
            return None
        source = functional.pad(bias.float(), (0, rows - len(bias))).contiguous()
        packed = self._memory.take(4 * rows)
        self._functions.lmk_pack_bias(source.data_ptr(), rows, interleave, packed)
        return packed

    def vector(self, values: Tensor | None) -> int | None:
        """Address of a float32 copy, padded with zeros."""
        if values is None:
            return None
        source = pad(values.float(), 0).contiguous()
        address = self._memory.take(source.nbytes)
        ctypes.memmove(address, source.data_ptr(), source.nbytes)
        return address


def packed_bytes(library: Library, dtype: str, rows: int, columns: int) -> int:
    size: int = library.functions.lmk_packed_bytes(FORMATS[dtype], round_up(rows), round_up(columns))
    return round_up(size, 64)


def pad(values: Tensor, *dims: int) -> Tensor:
    """Zeros at the end of each of `dims`, up to a multiple of 32. The tensor itself if nothing is missing."""
    missing = [round_up(values.shape[dim]) - values.shape[dim] if dim in dims else 0 for dim in range(values.ndim)]
    if not any(missing):
        return values
    return functional.pad(values, [side for amount in reversed(missing) for side in (0, amount)])


def pad_rows(values: Tensor, parts: int) -> Tensor:
    """Pad each of `parts` equal parts of the first dimension (heads, or gates and values) on its own."""
    return pad(values.reshape(parts, -1, *values.shape[1:]), 1).flatten(0, 1)


def pad_outputs(matrix: Matrix, parts: int) -> Matrix:
    """The same for a matrix of any kind."""
    if isinstance(matrix, GroupedMatrix):
        return matrix.map(lambda rows: pad_rows(rows, parts))
    return pad_rows(matrix, parts)


def pad_inputs(matrix: Matrix, parts: int) -> Matrix:
    """The same for the second dimension. A GroupedMatrix has nothing to pad there."""
    if isinstance(matrix, GroupedMatrix):
        return matrix
    return pad(matrix.reshape(len(matrix), parts, -1), 2).flatten(1, 2)
