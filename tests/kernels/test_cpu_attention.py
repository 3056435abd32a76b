"""Plan attention in C++ against the definition, and the promise that a row's bits depend on its keys alone."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_kernels.cpu import available_levels
from lmprog_runtime.step import ALL_KEYS, AttentionPlan
from tests.support.attention_oracle import Case, dense_attention, make_case, mixed_case
from tests.support.native import attention

LEVELS = available_levels()
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.int8: 3e-2}  # by the type of the pool


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 32), (7, 1, 96), (8, 2, 128)])
@pytest.mark.parametrize("rule", [{}, {"window": 8}, {"window": 33}, {"softcap": 3.0}])
def test_mixed_plans(
    level: str, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, rule: dict[str, float]
) -> None:
    case = mixed_case(1, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    expected = dense_attention(case, scale=head_dim**-0.5, **rule)
    for threads in (1, 2):
        out = attention(level, case, scale=head_dim**-0.5, threads=threads, **rule)
        assert (out - expected).abs().max() < TOLERANCE[dtype]


LENGTH, HEAD_DIM = 700, 64


@functools.cache
def _request(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Queries, pool and slots of a request of LENGTH tokens."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(LENGTH, 6, HEAD_DIM, generator=generator)
    kv = torch.randn(1000, 2, 2, HEAD_DIM, generator=generator)
    return queries, kv, torch.randperm(1000, generator=generator)[:LENGTH].numpy().astype(np.int32)


def _extend(dtype: torch.dtype, first: int, last: int, cuts: set[int]) -> Case:
    """The request's rows from `first` to `last`, its keys in items that end at each of `cuts`."""
    queries, kv, slots = _request(dtype)
    ends = sorted({cut for cut in cuts if cut <= first} | {last})
    starts = [0, *ends[:-1]]
    items = [(0, last - first, a, b - a, first - a, a) for a, b in zip(starts, ends, strict=True)]
    plan = AttentionPlan(slots[:last], np.array(items[::-1], np.int32))
    return make_case(queries[first:last], kv, plan, np.arange(first, last, dtype=np.int32), dtype)


@functools.cache
def _in_one_go(level: str, dtype: torch.dtype, window: int | None) -> torch.Tensor:
    return attention(level, _extend(dtype, 0, LENGTH, set()), scale=0.125, window=window)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 1, 100, 300])
def test_long_request(level: str, dtype: torch.dtype, window: int | None) -> None:
    expected = dense_attention(_extend(dtype, 0, LENGTH, set()), scale=0.125, window=window)
    assert (_in_one_go(level, dtype, window) - expected).abs().max() < TOLERANCE[dtype]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LEVELS),
    st.sampled_from(list(TOLERANCE)),
    st.sampled_from([None, 100, 300]),
    st.integers(0, LENGTH - 1),
    st.integers(1, 90),
    st.sets(st.integers(1, LENGTH), max_size=6),
    st.integers(1, 3),
)
def test_a_row_has_the_same_bits_in_any_plan(
    level: str, dtype: torch.dtype, window: int | None, first: int, rows: int, cuts: set[int], threads: int
) -> None:
    case = _extend(dtype, first, min(LENGTH, first + rows), cuts)
    out = attention(level, case, scale=0.125, window=window, threads=threads)
    assert torch.equal(out, _in_one_go(level, dtype, window)[case.positions])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("prefix", [256, 300, 511, 600])
def test_a_shared_prefix_has_the_bits_of_separate_ones(level: str, dtype: torch.dtype, prefix: int) -> None:
    """Branches on one prefix, the prefix as one item over all their rows."""
    queries, kv, slots = _request(dtype)
    tails = [1, 3, 40, 2]
    items, keys, positions = [(0, sum(tails), 0, prefix, ALL_KEYS, 0)], list(slots[:prefix]), []
    for count in tails:
        items.append((len(positions), count, len(keys), count, 0, prefix))
        keys += list(slots[prefix : prefix + count])
        positions += range(prefix, prefix + count)
    plan = AttentionPlan(np.array(keys, np.int32), np.array(items, np.int32))
    case = make_case(queries[positions], kv, plan, np.array(positions, np.int32), dtype)
    for threads in (1, 2):
        out = attention(level, case, scale=0.125, threads=threads)
        assert torch.equal(out, _in_one_go(level, dtype, None)[positions])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_garbage_in_unused_slots_does_no_harm(level: str, dtype: torch.dtype) -> None:
    case = _extend(dtype, 70, 90, {33})
    expected = attention(level, case, scale=0.125)
    kv = torch.full_like(case.kv, torch.nan)
    used = torch.from_numpy(case.plan.key_slots.astype(np.int64))
    kv[used] = case.kv[used]
    assert torch.equal(attention(level, case._replace(kv=kv), scale=0.125), expected)
