"""Sampling against exact distributions, and its promises: independence of neighbours, repeatability, dead ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmprog_runtime.model.sampler import DeadEnd, Sampled, SamplerState, sample, token_logprobs
from lmprog_runtime.request import SamplingParams

VOCAB = 300


def _row(seed: int = 0, vocab: int = VOCAB, spread: float = 2.0) -> Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * spread


def _mask(allowed: list[int], vocab: int = VOCAB) -> np.ndarray:
    words = np.zeros((vocab + 31) // 32, np.uint32)
    for token in allowed:
        words[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return words


def _params(**fields: object) -> SamplingParams:
    return SamplingParams(**{"seed": 1, **fields})  # type: ignore[arg-type]


def _tokens(logits: Tensor, states: list[SamplerState], masks: list[np.ndarray | None] | None = None) -> list[int]:
    found = sample(logits, states, masks or [None] * len(states))
    assert all(isinstance(entry, Sampled) for entry in found)
    return [entry.token_id for entry in found if isinstance(entry, Sampled)]


def _expected(row: Tensor, params: SamplingParams, allowed: list[int] | None = None) -> np.ndarray:
    """The exact distribution, by the definitions, one token at a time."""
    logits = row.double().numpy().copy()
    if allowed is not None:
        logits[[t for t in range(len(logits)) if t not in set(allowed)]] = -np.inf
    weights = np.exp((logits - logits.max()) / params.temperature)
    order = np.argsort(-weights, kind="stable")
    if params.top_k > 0:
        weights[order[params.top_k :]] = 0
    total, before, kept = weights.sum(), 0.0, []
    for token in order:
        if before < params.top_p * total or params.top_p == 1:
            kept.append(token)
        before += weights[token]
    out = np.zeros_like(weights)
    for token in kept:
        if weights[token] >= params.min_p * weights.max():
            out[token] = weights[token]
    return out / out.sum()


DISTRIBUTIONS = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 7},
    "top_k_of_all": {"top_k": VOCAB + 5, "temperature": 0.7},
    "top_p": {"top_p": 0.6},
    "top_p_wide": {"top_p": 0.99, "temperature": 4.0},
    "min_p": {"min_p": 0.05},
    "all_filters": {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("is_masked", [False, True])
def test_draws_follow_the_exact_distribution(name: str, is_masked: bool) -> None:
    """Chi-square at fixed seeds; tokens that the filters drop must never come."""
    row, allowed = _row(3), list(range(5, VOCAB, 3)) if is_masked else None
    params, count = _params(**DISTRIBUTIONS[name]), 4000
    states = [SamplerState(params, [], seed) for seed in range(count)]
    mask = _mask(allowed) if allowed is not None else None
    drawn = np.bincount(_tokens(row.expand(count, -1), states, [mask] * count), minlength=VOCAB)
    expected = _expected(row, params, allowed) * count
    assert drawn[expected == 0].sum() == 0
    assert _chi_square_is_plausible(drawn, expected)


def _chi_square_is_plausible(drawn: np.ndarray, expected: np.ndarray) -> bool:
    """Cells below 5 are pooled; 4 standard deviations above the mean of the chi-square distribution is the limit."""
    is_big = expected >= 5
    observed = np.append(drawn[is_big], drawn[~is_big].sum())
    wanted = np.append(expected[is_big], expected[~is_big].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = max(1, len(wanted) - 1)
    return bool(statistic < freedom + 4 * math.sqrt(2 * freedom))


def test_the_chi_square_test_can_fail() -> None:
    expected = _expected(_row(3), _params()) * 4000
    wrong = _expected(_row(3), _params(temperature=1.2)) * 4000
    assert not _chi_square_is_plausible(wrong, expected)


def test_successive_draws_of_one_request_follow_the_distribution_too() -> None:
    row, state = _row(4), SamplerState(_params(), [])
    drawn = np.bincount([_tokens(row[None], [state])[0] for _ in range(3000)], minlength=VOCAB)
    assert _chi_square_is_plausible(drawn, _expected(row, _params()) * 3000)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.data())
def test_a_row_draws_the_same_whatever_its_neighbours_are(seed: int, rows: int, data: st.DataObject) -> None:
    """Alone, and at any place in a batch of other parameters and masks."""
    choices = st.sampled_from([*DISTRIBUTIONS.values(), {"temperature": 0.0}, {"repetition_penalty": 1.5}])
    kinds = [data.draw(choices) for _ in range(rows)]
    masks = [data.draw(st.sampled_from([None, _mask([1, 50, 299]), _mask([])])) for _ in range(rows)]
    logits = torch.stack([_row(seed % 1000 + i) for i in range(rows)])

    def states() -> list[SamplerState]:
        return [SamplerState(_params(**kind), [3, 4], seed + i) for i, kind in enumerate(kinds)]

    together = sample(logits, states(), masks)
    alone = [sample(logits[i : i + 1], [state], [masks[i]])[0] for i, state in enumerate(states())]
    assert together == alone


def test_draws_depend_on_seed_and_count_only() -> None:
    row = _row()[None]
    first, second = SamplerState(_params(seed=9), []), SamplerState(_params(seed=9), [])
    assert [_tokens(row, [first]) for _ in range(20)] == [_tokens(row, [second]) for _ in range(20)]


def test_equal_rows_with_different_seeds_differ() -> None:
    states = [SamplerState(_params(seed=seed), []) for seed in range(16)]
    assert len(set(_tokens(_row().expand(16, -1), states))) > 4


def test_without_a_seed_requests_differ() -> None:
    states = [SamplerState(_params(seed=None), []) for _ in range(16)]
    assert len({state.seed for state in states}) == 16


def test_seed_zero_is_a_seed() -> None:
    assert SamplerState(_params(seed=0), []).seed == 0


def test_greedy_is_the_largest_logit_and_uses_no_draw() -> None:
    state = SamplerState(_params(temperature=0.0), [])
    row = _row()
    assert _tokens(row[None], [state]) == [int(row.argmax())]
    assert state.draws == 0


def test_a_tiny_temperature_is_greedy_not_nan() -> None:
    row = _row()
    assert _tokens(row[None], [SamplerState(_params(temperature=1e-38), [])]) == [int(row.argmax())]


def test_the_logits_are_left_alone() -> None:
    logits = torch.stack([_row(1), _row(2)])
    before = logits.clone()
    states = [SamplerState(_params(logit_bias={3: 5.0}, repetition_penalty=2.0), [1, 2]) for _ in range(2)]
    sample(logits, states, [None, _mask([5])])
    assert torch.equal(logits, before)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 3, "min_p": 0.9}])
def test_an_empty_mask_is_a_dead_end_for_its_row_alone(params: dict[str, float]) -> None:
    logits = torch.stack([_row(1), _row(2), _row(3)])
    states = [SamplerState(_params(**params), []) for _ in range(3)]
    found = sample(logits, states, [None, _mask([]), _mask([7])])
    assert isinstance(found[0], Sampled)
    assert isinstance(found[1], DeadEnd)
    assert "allows no further token" in found[1].reason
    assert found[2] == Sampled(7, None, ())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_a_dead_end(value: float, temperature: float) -> None:
    logits = torch.stack([_row(1), _row(2)])
    logits[0, 17] = value
    found = sample(logits, [SamplerState(_params(temperature=temperature), []) for _ in range(2)], [None, None])
    assert isinstance(found[0], DeadEnd)
    assert "finite" in found[0].reason
    assert isinstance(found[1], Sampled)


def test_a_mask_with_one_token_gives_it_at_any_temperature() -> None:
    states = [SamplerState(_params(temperature=t, logit_bias={42: -100.0}), []) for t in (0.0, 0.3, 5.0)]
    assert _tokens(_row().expand(3, -1), states, [_mask([42])] * 3) == [42, 42, 42]


def test_tokens_past_the_end_of_a_mask_are_not_allowed() -> None:
    """A model's vocabulary may be padded beyond the tokenizer's."""
    row = torch.zeros(1, 100)
    row[0, 96:] = 50.0
    states = [SamplerState(_params(temperature=0.0), [])]
    assert _tokens(row, states, [np.full(3, 0xFFFFFFFF, np.uint32)])[0] < 96


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 64, 100])
def test_masks_of_any_vocabulary_size(vocab: int) -> None:
    for token in range(vocab):
        states = [SamplerState(_params(temperature=0.0), [])]
        assert _tokens(torch.zeros(1, vocab), states, [_mask([token], vocab)]) == [token]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    state = SamplerState(_params(repetition_penalty=2.0), [0, 1])
    state.observe(2)
    row = torch.tensor([4.0, -4.0, 1.0, 3.0])
    state.adjust(row)
    assert row.tolist() == [2.0, -8.0, 0.5, 3.0]


def test_frequency_and_presence_count_the_output_only() -> None:
    state = SamplerState(_params(frequency_penalty=0.5, presence_penalty=1.0), [3])
    for token in (1, 1, 2):
        state.observe(token)
    row = torch.zeros(4)
    state.adjust(row)
    assert row.tolist() == [0.0, -2.0, -1.5, 0.0]


def test_logit_bias_moves_the_greedy_token() -> None:
    row = _row()
    low = int(row.argmin())
    state = SamplerState(_params(temperature=0.0, logit_bias={low: 100.0}), [])
    assert _tokens(row[None], [state]) == [low]


def test_penalties_of_one_row_do_not_reach_its_neighbours() -> None:
    row = _row()
    best = int(row.argmax())
    states = [
        SamplerState(_params(temperature=0.0, logit_bias={best: -100.0}), []),
        SamplerState(_params(temperature=0.0), []),
    ]
    first, second = _tokens(row.expand(2, -1), states)
    assert (first == best, second == best) == (False, True)


def test_logprobs_are_those_of_the_raw_logits() -> None:
    row = _row()
    params = _params(temperature=0.0, logprobs=True, top_logprobs=4, logit_bias={8: 100.0})
    found = sample(row[None], [SamplerState(params, [])], [None])[0]
    exact = row.double().log_softmax(-1)
    assert isinstance(found, Sampled)
    assert found.token_id == 8
    assert found.logprob == pytest.approx(float(exact[8]), abs=1e-5)
    assert [token for token, _ in found.top] == exact.topk(4).indices.tolist()
    assert [value for _, value in found.top] == pytest.approx(exact.topk(4).values.tolist(), abs=1e-5)


def test_logprobs_only_for_rows_that_ask() -> None:
    states = [SamplerState(_params(logprobs=flag, top_logprobs=2 * flag), []) for flag in (False, True)]
    silent, speaking = sample(_row().expand(2, -1), states, [None, None])
    assert isinstance(silent, Sampled)
    assert isinstance(speaking, Sampled)
    assert (silent.logprob, silent.top) == (None, ())
    assert len(speaking.top) == 2


def test_prompt_logprobs_equal_log_softmax_and_the_best_equals_the_top_entry() -> None:
    logits = torch.stack([_row(seed) for seed in range(150)])
    best = logits.argmax(-1).tolist()
    exact = logits.double().log_softmax(-1)
    for row, entry in enumerate(token_logprobs(logits, best, 3)):
        assert entry.token_id == best[row]
        assert entry.logprob == pytest.approx(float(exact[row, best[row]]), abs=1e-5)
        assert entry.logprob == entry.top[0][1]  # float equality: evaluation harnesses compare them with ==
        assert [token for token, _ in entry.top] == exact[row].topk(3).indices.tolist()


def test_more_top_logprobs_than_tokens() -> None:
    found = sample(torch.zeros(1, 3), [SamplerState(_params(logprobs=True, top_logprobs=50), [])], [None])[0]
    assert isinstance(found, Sampled)
    assert len(found.top) == 3


def test_large_vocabularies_take_the_search_by_blocks() -> None:
    """The largest logits are found whether they crowd into one block of 64 or spread over all."""
    for seed in range(5):
        row = _row(seed, vocab=9001)
        row[64:128] += 9.0
        params = _params(top_k=50, top_p=0.95)
        states = [SamplerState(params, [], s) for s in range(400)]
        tokens = _tokens(row.expand(400, -1), states)
        assert (_expected(row, params)[tokens] > 0).all()


@pytest.mark.parametrize("vocab", [VOCAB, 9000])
def test_equal_logits_are_taken_in_order_whatever_the_neighbours_ask_for(vocab: int) -> None:
    """16-bit models often give equal logits; the candidates must not depend on how many the batch needs."""
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(0)).round()
    params, neighbour = _params(top_k=11), _params(top_k=90)
    expected = set(np.flatnonzero(_expected(row, params)))
    for seed in range(40):
        alone = _tokens(row[None], [SamplerState(params, [], seed)])
        beside = _tokens(row.expand(2, -1), [SamplerState(params, [], seed), SamplerState(neighbour, [], seed)])
        assert alone == beside[:1]
        assert set(alone) <= expected


def test_no_rows() -> None:
    assert sample(torch.zeros(0, 5), [], []) == []
