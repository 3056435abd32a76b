"""Writing into the pool, and token masks, in every implementation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_kernels.reference import unpack_mask
from lmprog_runtime.ops import Kernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_store_writes_its_slots_and_no_others(kernels: Kernels, dtype: torch.dtype) -> None:
    kv = torch.randn(20, 2, 3, 24).to(dtype)
    keys, values = torch.randn(4, 3, 24), torch.randn(4, 3, 24)
    slots = torch.tensor([19, 0, 7, 4], dtype=torch.int32)
    expected = kv.clone()
    expected[slots.long(), 0], expected[slots.long(), 1] = keys.to(dtype), values.to(dtype)
    kernels.store_kv(keys, values, kv, slots)
    # the interpreter cuts bfloat16 off where a card rounds it
    assert torch.allclose(kv.float(), expected.float(), rtol=2**-7 if dtype == torch.bfloat16 else 0, atol=0)
    others = [slot for slot in range(20) if slot not in slots.tolist()]
    assert torch.equal(kv[others], expected[others])


def test_store_takes_views(kernels: Kernels) -> None:
    """K and V are parts of one projection's output, and the pool is one layer of many."""
    qkv, pool = torch.randn(3, 7, 16), torch.zeros(2, 9, 2, 2, 16)
    kernels.store_kv(qkv[:, 3:5], qkv[:, 5:], pool[1], torch.tensor([8, 2, 5], dtype=torch.int32))
    assert torch.equal(pool[1, [8, 2, 5]], torch.stack([qkv[:, 3:5], qkv[:, 5:]], dim=1))
    assert not pool[0].any()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 100, 1500])
def test_masks_leave_the_allowed_tokens_alone(kernels: Kernels, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    words = torch.randint(-(2**31), 2**31, (3, -(-vocab // 32)), generator=generator).int()
    logits = torch.randn(3, vocab, generator=generator)
    allowed = [[bool(words[row, t // 32].item() >> (t % 32) & 1) for t in range(vocab)] for row in range(3)]
    expected = logits.masked_fill(~torch.tensor(allowed), -math.inf)
    kernels.apply_token_mask(logits, words)
    assert torch.equal(logits, expected)


def test_full_and_empty_masks(kernels: Kernels) -> None:
    logits = torch.zeros(2, 70)
    kernels.apply_token_mask(logits, torch.tensor([[-1, -1, -1], [0, 0, 0]], dtype=torch.int32))
    assert not logits[0].any()
    assert torch.isinf(logits[1]).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.data())
def test_unpacking_is_the_definition(vocab: int, data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=-(-vocab // 32), max_size=-(-vocab // 32)))
    packed = torch.tensor([word - 2**32 if word >> 31 else word for word in words], dtype=torch.int32)
    found = unpack_mask(packed.unsqueeze(0), vocab)[0].tolist()
    assert found == [bool(words[t // 32] >> (t % 32) & 1) for t in range(vocab)]
