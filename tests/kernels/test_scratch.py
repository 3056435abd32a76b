"""Memory is used again when it is free, and only then."""

from __future__ import annotations

import torch

from lmprog_kernels.cpu.scratch import Recycled


def test_memory_comes_again_once_its_tensor_is_gone() -> None:
    recycled = Recycled()
    first = recycled.take(3, 5)
    address = first.data_ptr()
    del first
    smaller = recycled.take(2, 4)
    assert smaller.data_ptr() == address
    assert smaller.shape == (2, 4)


def test_a_tensor_that_somebody_holds_is_left_alone() -> None:
    recycled = Recycled()
    part = recycled.take(3, 5).fill_(1.0)[1:].view(-1)[2:4]  # only a view of a view is held
    for _ in range(3):
        recycled.take(3, 5).fill_(2.0)
    assert torch.equal(part, torch.ones(2))


def test_none_and_very_many() -> None:
    recycled = Recycled()
    assert recycled.take(0, 7).shape == (0, 7)
    assert recycled.take(2, 1 << 23).shape == (2, 1 << 23)
    assert recycled.take(1, 3).shape == (1, 3)
