"""Packed matrices against torch, on every instruction set of this machine."""

from __future__ import annotations

import pytest
import torch

from lmprog_kernels.cpu import available_levels
from tests.support.native import linear

LEVELS = available_levels()
TOLERANCE = {"float32": 1e-5, "bfloat16": 8e-3}  # of the largest result; bf16 inputs are rounded


def _matrices(rows: int, outputs: int, columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, columns, generator=generator).bfloat16().float()
    return torch.randn(rows, columns, generator=generator), weight


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("rows", "outputs", "columns"),
    [*((rows, 64, 96) for rows in range(1, 26)), (3, 32, 32), (5, 160, 1536), (300, 96, 1024), (2, 3072, 32)],
)
def test_products(level: str, dtype: str, rows: int, outputs: int, columns: int) -> None:
    inputs, weight = _matrices(rows, outputs, columns)
    expected = inputs.double() @ weight.double().T
    error = (linear(level, inputs, weight, dtype, threads=2) - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_has_the_same_bits_in_any_company(level: str, dtype: str) -> None:
    inputs, weight = _matrices(37, 96, 448)
    together = linear(level, inputs, weight, dtype, threads=2)
    for rows in (1, 2, 7, 12, 13, 31):
        assert torch.equal(linear(level, inputs[5 : 5 + rows], weight, dtype), together[5 : 5 + rows])
