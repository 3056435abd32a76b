"""The KV pool: its layout, raw reads and writes, and its default size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lmprog_runtime.model.kv_pool import DEFAULT_SLOTS, KvPool, pool_slots


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_raw_rows_hold_one_slot_layer_after_layer(dtype: torch.dtype) -> None:
    pool = KvPool(3, 10, 2, 4, dtype=dtype)
    pool.data.normal_()
    slots = np.array([7, 0, 3], np.int32)
    raw = pool.read(slots)
    assert raw.shape == (3, pool.bytes_per_slot)
    for row, slot in zip(raw, slots.tolist(), strict=True):
        assert row.tobytes() == pool.data[:, slot].contiguous().view(torch.uint8).numpy().tobytes()


def test_what_is_written_is_read_back_and_nothing_else_changes() -> None:
    source, target = (KvPool(2, 6, 1, 8, dtype=torch.bfloat16) for _ in range(2))
    source.data.normal_()
    raw = source.read(np.array([0, 2], np.int32))
    raw.flags.writeable = False  # as rows that come out of a file are
    target.write(np.array([5, 1], np.int32), raw)
    assert torch.equal(target.data[:, [5, 1]], source.data[:, [0, 2]])
    assert not target.data[:, [0, 2, 3, 4]].any()


def test_no_slots_is_an_empty_array() -> None:
    pool = KvPool(2, 6, 1, 8, dtype=torch.float32)
    empty = np.array([], np.int32)
    assert pool.read(empty).shape == (0, pool.bytes_per_slot)
    pool.write(empty, pool.read(empty))


def test_the_default_size_and_its_limit() -> None:
    assert pool_slots(None, 1024, "cpu") == DEFAULT_SLOTS
    assert 1 <= pool_slots(None, 1 << 30, "cpu") < DEFAULT_SLOTS
    assert pool_slots(77, 1024, "cpu") == 77
    with pytest.raises(ValueError, match=r"max_total_tokens = 1000000 needs 1000000\.0 GiB"):
        pool_slots(1_000_000, 1 << 30, "cpu")
