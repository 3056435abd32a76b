"""All implementations of attention against the definition, and of merging against attention over the union.

The Triton kernels run in Triton's interpreter, which checks what they compute and not how they are laid out on a card.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_kernels.plan import Plan, Rule, prepare_plan
from lmprog_kernels.reference import attention as reference_attention
from lmprog_runtime.ops import Kernels
from tests.support.attention_oracle import Case, dense_attention, mixed_case

RULES = [{"window": 8}, {"softcap": 2.0}, {"window": 5, "softcap": 3.0}]
SHAPES = [(9, 3, 64), (4, 2, 16), (3, 1, 24), (2, 2, 8)]  # heads, kv_heads, head_dim
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def _plan(case: Case) -> Plan:
    return prepare_plan(case.plan.key_slots, case.plan.items, case.positions)


def _error(kernels: Kernels, case: Case, sinks: torch.Tensor | None = None, **rule: float) -> float:
    scale = case.queries.shape[-1] ** -0.5
    found = kernels.plan_attention(case.queries, case.kv, _plan(case), Rule(scale, **rule), sinks)  # type: ignore[arg-type]
    assert found.dtype == case.queries.dtype
    return float((found - dense_attention(case, scale=scale, sinks=sinks, **rule)).abs().max())  # type: ignore[arg-type]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_mixed_plans_of_any_shape(kernels: Kernels, heads: int, kv_heads: int, head_dim: int) -> None:
    case = mixed_case(1, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    assert _error(kernels, case) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("rule", RULES)
def test_windows_and_softcaps(kernels: Kernels, rule: dict[str, float]) -> None:
    case = mixed_case(1, heads=4, kv_heads=2, head_dim=16)
    assert _error(kernels, case, **rule) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bit_types(kernels: Kernels, dtype: torch.dtype) -> None:
    case = mixed_case(2, heads=4, kv_heads=2, head_dim=16, dtype=dtype)
    assert _error(kernels, case, softcap=3.0) < TOLERANCE[dtype]


def test_consecutive_slots(kernels: Kernels) -> None:
    case = mixed_case(3, heads=4, kv_heads=2, head_dim=16, scattered=False)
    assert _error(kernels, case, window=9) < TOLERANCE[torch.float32]


def test_sinks(kernels: Kernels) -> None:
    case = mixed_case(4, heads=4, kv_heads=2, head_dim=16)
    assert _error(kernels, case, sinks=torch.tensor([-1.0, 0.0, 3.0, 9.0])) < TOLERANCE[torch.float32]


def test_scores_too_large_for_exp(kernels: Kernels) -> None:
    case = mixed_case(5, heads=4, kv_heads=2, head_dim=16)
    assert _error(kernels, case._replace(queries=case.queries * 100)) < 1e-4


def test_the_pool_may_be_a_view_of_one_layer(kernels: Kernels) -> None:
    case = mixed_case(6, heads=4, kv_heads=2, head_dim=16)
    pool = torch.randn(3, *case.kv.shape)
    pool[1] = case.kv
    assert _error(kernels, case._replace(kv=pool[1])) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("kind", ["decode", "extend", "shared"])
def test_each_kind_gives_its_states(kernels: Kernels, kind: str) -> None:
    """Output and log-sum-exp of every partial state, against the plain torch of the reference."""
    case = mixed_case(7, heads=4, kv_heads=2, head_dim=16)
    plan, rule = _plan(case), Rule(0.25, window=20)
    names = {"decode": "decode_attention", "extend": "extend_attention", "shared": "shared_prefix_attention"}
    work = getattr(plan, kind)
    out, lse = getattr(kernels, names[kind])(case.queries, case.kv, plan, work, rule)
    wanted_out, wanted_lse = reference_attention.extend_attention(case.queries, case.kv, plan, work, rule)
    assert out.shape == (work.num_states, 4, 16)
    assert float((out - wanted_out).abs().max()) < 2e-6
    assert torch.equal(torch.isinf(lse), torch.isinf(wanted_lse))
    assert torch.allclose(lse, wanted_lse, atol=2e-6)


def test_merging_two_halves_is_attention_over_both(kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(0)
    scores, values = torch.randn(5, 3, 12, generator=generator) * 4, torch.randn(12, 16, generator=generator)

    def state(keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        part = scores[..., keys]
        return part.softmax(-1) @ values[keys], part.logsumexp(-1)

    out, lse = kernels.merge_states(*state(slice(0, 5)), *state(slice(5, 12)))
    wanted_out, wanted_lse = state(slice(0, 12))
    assert torch.allclose(out, wanted_out, atol=1e-6)
    assert torch.allclose(lse, wanted_lse, atol=1e-6)


def test_merging_with_an_empty_set(kernels: Kernels) -> None:
    out, lse = torch.randn(2, 3, 8), torch.randn(2, 3)
    empty = torch.full_like(lse, -math.inf)
    merged, merged_lse = kernels.merge_states(out, lse, torch.zeros_like(out), empty)
    assert torch.equal(merged, out)
    assert torch.equal(merged_lse, lse)
    nothing, nothing_lse = kernels.merge_states(torch.zeros_like(out), empty, torch.zeros_like(out), empty)
    assert not nothing.any()
    assert torch.equal(nothing_lse, empty)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_reference_work_in_blocks_of_rows_is_the_same(seed: int, rows_per_block: int) -> None:
    case = mixed_case(seed, heads=2, kv_heads=1, head_dim=8)
    plan, rule = _plan(case), Rule(0.3, window=seed % 40 + 1)
    whole = reference_attention.plan_attention(case.queries, case.kv, plan, rule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_attention, "MOST_SCORES", rows_per_block * 60)
        blocks = reference_attention.plan_attention(case.queries, case.kv, plan, rule)
    assert torch.allclose(whole, blocks, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31))
def test_reference_on_random_plans(seed: int) -> None:
    generator = np.random.default_rng(seed)
    case = mixed_case(seed, heads=4, kv_heads=2, head_dim=8, scattered=bool(generator.integers(2)))
    plan = _plan(case)
    found = reference_attention.plan_attention(case.queries, case.kv, plan, Rule(0.4, softcap=4.0))
    assert float((found - dense_attention(case, scale=0.4, softcap=4.0)).abs().max()) < 2e-6
