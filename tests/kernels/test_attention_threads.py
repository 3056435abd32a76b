"""Attention in C++: the same bits on any number of threads, whatever is shared, and only what was written is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_kernels.cpu import available_levels
from tests.support.attention_oracle import Case, PlanBuilder, dense_attention, make_case
from tests.support.native import attention

pytestmark = pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here")

levels = st.sampled_from(available_levels() or [""])
branches = st.lists(st.tuples(st.sampled_from([0, 0, 3, 250, 300]), st.integers(1, 200)), min_size=1, max_size=4)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Branches of old and new tokens on a prefix, which they attend to together or one by one."""
    kv_heads, group = draw(st.sampled_from([1, 2, 3, 5])), draw(st.sampled_from([1, 3, 8]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
    prefix = draw(st.sampled_from([0, 10, 256, 700]))
    shapes, is_shared = draw(branches), draw(st.booleans())
    seed = draw(st.integers(0, 2**31))
    slots = prefix + sum(map(sum, shapes)) + 7
    builder = PlanBuilder(np.random.default_rng(seed), slots)
    shared = builder.take(prefix)
    for old, new in shapes:
        first = len(builder.positions)
        builder.extend(builder.take(old), new, first_position=prefix)
        if prefix and not is_shared:
            builder.share(shared, first, new)
    if prefix and is_shared:
        builder.share(shared, 0, len(builder.positions))
    plan, generator = builder.plan(), torch.Generator().manual_seed(seed)
    kv = torch.full((slots, 2, kv_heads, 32), torch.nan)
    written = torch.from_numpy(np.unique(plan.key_slots).astype(np.int64))
    kv[written] = torch.randn(len(written), 2, kv_heads, 32, generator=generator)
    queries = torch.randn(len(builder.positions), kv_heads * group, 32, generator=generator)
    return make_case(queries, kv, plan, np.array(builder.positions, np.int32), dtype)


@settings(max_examples=150, deadline=None)
@given(
    case=cases(), window=st.sampled_from([None, None, 1, 40, 300]), level=st.sampled_from(available_levels() or [""])
)
def test_the_same_bits_on_any_number_of_threads(case: Case, window: int | None, level: str) -> None:
    alone = attention(level, case, scale=0.2, window=window)
    assert torch.isfinite(alone).all()
    for threads in (2, 3, 5, 16):
        assert torch.equal(attention(level, case, scale=0.2, window=window, threads=threads), alone)


@settings(max_examples=4, deadline=None)
@given(case=cases(), window=st.sampled_from([None, 40]), level=levels)
def test_equals_attention_by_definition(case: Case, window: int | None, level: str) -> None:
    tolerance = 2e-5 if case.queries.dtype == torch.float32 else 3e-2
    expected = dense_attention(case._replace(kv=case.kv.nan_to_num(0.0)), scale=0.2, window=window)
    assert (attention(level, case, scale=0.2, window=window, threads=3) - expected).abs().max() < tolerance
