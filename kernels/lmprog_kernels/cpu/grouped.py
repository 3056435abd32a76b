"""Matrices that come quantised, in groups of 32 inputs: they are packed as they are, without becoming floats first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 32


class GroupedMatrix(NamedTuple):
    """[outputs, inputs] numbers: scale * (integer - 128) in 8 bits, scale * integer + minimum in 4.

    The number of inputs is a multiple of 32.
    """

    integers: Tensor  # [outputs, inputs] uint8; 0 to 15 in 4 bits
    scales: Tensor  # [outputs, inputs / 32] float16
    minima: Tensor | None  # [outputs, inputs / 32] float16; None: 8 bits

    @property
    def dtype(self) -> str:
        return "int8" if self.minima is None else "int4"

    def map(self, change: Callable[[Tensor], Tensor]) -> GroupedMatrix:
        """Something done to all three along the outputs."""
        minima = None if self.minima is None else change(self.minima)
        return GroupedMatrix(change(self.integers), change(self.scales), minima)

    def to_float(self) -> Tensor:
        """[outputs, inputs] float32"""
        integers = self.integers.float().view(len(self.scales), -1, GROUP)
        scales = self.scales.float().unsqueeze(2)
        if self.minima is None:
            return ((integers - 128) * scales).flatten(1)
        return (integers * scales + self.minima.float().unsqueeze(2)).flatten(1)

    def panels(self, *, panel: int, interleave: bool) -> Tensor:
        """The bytes as `lmk_pack` would write them. panel: outputs that are packed together, see `Library.panel`; the
        number of outputs must be a multiple of it."""
        matrix = self.map(lambda rows: _gates_and_values(rows, panel // 2)) if interleave else self
        blocks = matrix.integers.view(-1, panel, self.integers.shape[1] // GROUP, GROUP)
        packed = _bytes(blocks) if matrix.minima is None else _nibbles(blocks)
        floats = [values for values in (matrix.scales, matrix.minima) if values is not None]
        by_group = [values.view(-1, panel, values.shape[1]).transpose(1, 2).contiguous() for values in floats]
        return torch.cat([packed, *(values.view(torch.uint8) for values in by_group)], dim=2).flatten()


Matrix = Tensor | GroupedMatrix


def concatenate(parts: Sequence[GroupedMatrix]) -> GroupedMatrix:
    """The outputs of all parts, which must have the same number of bits, one after the other."""
    integers, scales, minima = zip(*parts, strict=True)
    return GroupedMatrix(torch.cat(integers), torch.cat(scales), None if minima[0] is None else torch.cat(minima))


def _bytes(blocks: Tensor) -> Tensor:
    """[panels, 32, groups, 32] to [panels, groups, bytes]: four inputs of each output, then the next four."""
    quads = blocks.view(*blocks.shape[:3], 8, 4)
    return quads.permute(0, 2, 3, 1, 4).flatten(2)


def _nibbles(blocks: Tensor) -> Tensor:
    """The same with two quads in each four bytes, the first in the low nibbles."""
    low, high = blocks.view(*blocks.shape[:3], 4, 2, 4).unbind(4)
    return (low | high << 4).permute(0, 2, 3, 1, 4).flatten(2)


def _gates_and_values(rows: Tensor, half: int) -> Tensor:
    """Rows of gates, then as many values, into halves of panels by turns."""
    return rows.view(2, -1, half, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
