"""Packed matrices against torch, on every instruction set of this machine."""

from __future__ import annotations

import pytest
import torch

from lmprog_kernels.cpu import available_levels
from tests.support.native import linear

LEVELS = available_levels()
# of the largest result; all but float32 round the inputs, and the weights if they are not multiples of a scale
TOLERANCE = {"float32": 1e-5, "bfloat16": 8e-3, "int8": 2e-2, "int4": 0.12}


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
    error = (linear(level, inputs, weight, dtype, threads=1 + rows % 2) - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_row_has_the_same_bits_in_any_company(level: str, dtype: str) -> None:
    inputs, weight = _matrices(37, 96, 448)
    together = linear(level, inputs, weight, dtype, threads=2)
    for rows in (1, 2, 7, 12, 13, 31):
        assert torch.equal(linear(level, inputs[5 : 5 + rows], weight, dtype), together[5 : 5 + rows])


def _grid(dtype: str) -> torch.Tensor:
    """[96, 128] weights that the format holds exactly."""
    generator = torch.Generator().manual_seed(1)
    low, high = (-127, 128) if dtype == "int8" else (0, 16)
    integers = torch.randint(low, high, (96, 4, 32), generator=generator)
    integers[:, :, 0], integers[:, :, 1] = low, high - 1  # so that every group spans its range
    scales = torch.randint(1, 9, (96, 4, 1), generator=generator) / 256
    minima = torch.randint(-9, 9, (96, 4, 1), generator=generator) / 64 * (dtype == "int4")
    return (integers * scales + minima).view(96, 128)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("rows", range(1, 9))
def test_integers_are_exact(level: str, dtype: str, rows: int) -> None:
    """With inputs that are integers up to 127 in every group, nothing is rounded before the sums."""
    weight = _grid(dtype)
    inputs = torch.randint(-127, 128, (rows, 128)).float()
    inputs[:, ::32] = 127
    expected = inputs.double() @ weight.double().T
    error = (linear(level, inputs, weight, dtype, threads=1 + rows % 2) - expected).abs().max() / expected.abs().max()
    assert error < 1e-6
