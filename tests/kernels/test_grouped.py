"""Quantised matrices are packed to the bytes that the library makes of the numbers they stand for."""

from __future__ import annotations

import pytest
import torch

from lmprog_kernels.cpu import GroupedMatrix, available_levels, concatenate, load_library
from lmprog_kernels.cpu.packing import Memory, Packer, packed_bytes

pytestmark = pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here")


def _matrix(dtype: str, outputs: int, inputs: int, seed: int = 0) -> GroupedMatrix:
    """Every group spans its range, and its scale is short: quantising the numbers gives the same integers back."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (1, 256) if dtype == "int8" else (0, 16)
    integers = torch.randint(low, high, (outputs, inputs), generator=generator, dtype=torch.uint8)
    integers[:, ::32], integers[:, 1::32] = low, high - 1
    scales = torch.randint(1, 9, (outputs, inputs // 32), generator=generator).half() / 256
    minima = torch.randint(-9, 9, (outputs, inputs // 32), generator=generator).half() / 64
    return GroupedMatrix(integers, scales, None if dtype == "int8" else minima)


def _packed(
    level: str, matrix: torch.Tensor | GroupedMatrix, dtype: str, size: int, *, interleave: bool
) -> torch.Tensor:
    memory = Memory(size)
    Packer(load_library(level), memory).linear(matrix, None, dtype, interleave=interleave)
    return memory.bytes[: memory.used]


@pytest.mark.parametrize("level", available_levels())
@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 32), (128, 96)])
def test_bytes(level: str, dtype: str, interleave: bool, outputs: int, inputs: int) -> None:
    matrix = _matrix(dtype, outputs, inputs)
    size = packed_bytes(load_library(level), dtype, outputs + 64, inputs)
    found = _packed(level, matrix, dtype, size, interleave=interleave)
    assert torch.equal(found, _packed(level, matrix.to_float(), dtype, size, interleave=interleave))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_parts_one_after_the_other(dtype: str) -> None:
    parts = [_matrix(dtype, outputs, 64, seed=outputs) for outputs in (32, 7, 64)]
    assert torch.equal(concatenate(parts).to_float(), torch.cat([part.to_float() for part in parts]))
