"""The C++ sampler against the torch functions that define it, on every instruction set of this machine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from lmprog_kernels.cpu import available_levels, load_library
from lmprog_runtime.model.sampler import (
    DeadEnd,
    Sampled,
    SamplerState,
    sample_in_torch,
    token_logprobs,
    token_logprobs_in_torch,
)
from lmprog_runtime.ops.sampling import NativeSampler
from lmprog_runtime.request import SamplingParams

LEVELS = available_levels()
VOCABS = (1, 33, 64, 300, 5000)

Mask = NDArray[np.uint32] | None


def _native(level: str, logits: Tensor, states: list[SamplerState], masks: list[Mask], threads: int = 1) -> list[Any]:
    rows = [state.native_row(mask, logits) for state, mask in zip(states, masks, strict=True)]
    NativeSampler(load_library(level)).sample(logits, rows, threads)
    found = [(row.struct.token, row.wants_logprob and row.struct.token >= 0, row) for row in rows]
    return [Sampled(token, *(row.logprobs() if has_logprob else (None, ()))) for token, has_logprob, row in found]


@st.composite
def _params(draw: st.DrawFn, vocab: int) -> dict[str, Any]:
    return {
        "temperature": draw(st.sampled_from([0.0, 0.3, 1.0, 2.5, 1e-38])),
        "top_k": draw(st.sampled_from([-1, 1, 7, vocab, vocab + 3])),
        "top_p": draw(st.sampled_from([1.0, 0.999, 0.83, 0.11])),
        "min_p": draw(st.sampled_from([0.0, 0.013, 0.4])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.7])),
        "presence_penalty": draw(st.sampled_from([0.0, -0.4])),
        "logit_bias": draw(st.dictionaries(st.integers(0, vocab - 1), st.sampled_from([-100.0, 3.0]), max_size=4)),
        "top_logprobs": draw(st.sampled_from([0, 3])),
    }


def _mask(kind: str, vocab: int, generator: np.random.Generator) -> Mask:
    if kind == "none":
        return None
    share = {"few": 0.03, "most": 0.9, "empty": 0.0}[kind]
    bits = generator.random((vocab + 31) // 32 * 32) < share
    words = np.packbits(bits, bitorder="little").view(np.uint32)
    return words[: len(words) // 2] if kind == "few" else words  # a mask may end early


def _state(params: dict[str, Any], seed: int, vocab: int) -> SamplerState:
    generator = np.random.default_rng(seed)
    state = SamplerState(SamplingParams(**params), generator.integers(0, vocab, 5).tolist(), seed)
    for token in generator.integers(0, vocab, 6).tolist():
        state.observe(token)
    return state


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=150, deadline=None)
@given(
    data=st.data(), vocab=st.sampled_from(VOCABS), seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.5, 4.0])
)
def test_it_chooses_what_the_definition_chooses(
    level: str, data: st.DataObject, vocab: int, seed: int, spread: float
) -> None:
    rows = data.draw(st.integers(1, 5))
    kinds = [data.draw(_params(vocab)) for _ in range(rows)]
    generator = np.random.default_rng(seed)
    masks = [_mask(data.draw(st.sampled_from(["none", "few", "most", "empty"])), vocab, generator) for _ in range(rows)]
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread

    def states() -> list[SamplerState]:
        return [_state(kind, seed + row, vocab) for row, kind in enumerate(kinds)]

    expected = sample_in_torch(logits, states(), masks)
    found = _native(level, logits, states(), masks, threads=1 + seed % 3)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, DeadEnd):
            assert ours.token_id == -1
            continue
        assert ours.token_id == theirs.token_id
        assert (ours.logprob is None) == (theirs.logprob is None)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("params", [{}, {"top_k": 40}, {"top_p": 0.97, "temperature": 3.0}, {"min_p": 0.01}])
def test_long_sequences_of_draws_are_equal(level: str, params: dict[str, Any]) -> None:
    """A large vocabulary, and 16-bit logits, so that many are equal."""
    logits = (torch.randn(1, 20011, generator=torch.Generator().manual_seed(1)) * 3).bfloat16().float()
    ours, theirs = (SamplerState(SamplingParams(**params), [], 5) for _ in range(2))
    for _ in range(60):
        expected = sample_in_torch(logits, [theirs], [None])[0]
        assert isinstance(expected, Sampled)
        assert _native(level, logits, [ours], [None])[0].token_id == expected.token_id


@pytest.mark.parametrize("level", LEVELS)
def test_equal_logits_come_by_column_in_long_lists(level: str) -> None:
    """More entries than the sort by comparisons takes."""
    logits = torch.randn(1, 4000, generator=torch.Generator().manual_seed(0)).mul(2).round()
    logits[0, 5] = -0.0  # equal to 0
    state = SamplerState(SamplingParams(temperature=0.0, top_logprobs=4000), [])
    top = _native(level, logits, [state], [None])[0].top
    assert [token for token, _ in top] == (-logits[0]).sort(stable=True).indices.tolist()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_concern_their_row_alone(level: str, value: float) -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    logits[1, 99] = value
    states = [SamplerState(SamplingParams(temperature=0.0), []) for _ in range(3)]
    tokens = [choice.token_id for choice in _native(level, logits, states, [None] * 3, threads=2)]
    assert tokens == [int(logits[0].argmax()), -1, int(logits[2].argmax())]
    forbids_it = np.array([0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0b0111], np.uint32)
    assert _native(level, logits[1:2], states[1:2], [forbids_it])[0].token_id == int(logits[1, :99].argmax())


@pytest.mark.parametrize("level", LEVELS)
def test_a_token_that_cannot_be_is_never_drawn(level: str) -> None:
    logits = torch.full((1, 200), -math.inf)
    logits[0, [3, 150]] = 0.0
    for params in ({}, {"top_p": 0.9}, {"top_k": 5}):
        state = SamplerState(SamplingParams(**params), [], 3)
        assert {_native(level, logits, [state], [None])[0].token_id for _ in range(40)} == {3, 150}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("top", [0, 1, 5, 400])
@pytest.mark.parametrize("vocab", [300, 9000])
def test_scores_are_those_of_the_definition(level: str, top: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(top)
    logits = torch.stack([torch.randperm(vocab, generator=generator) / vocab * 20 - 10 for _ in range(70)])  # no equals
    ids = torch.randint(0, vocab, (70,), generator=generator).tolist()
    expected = token_logprobs_in_torch(logits, ids, min(top, vocab))
    for ours, theirs in zip(NativeSampler(load_library(level)).score(logits, ids, top, 2), expected, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
        assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=1e-5)


def test_scores_of_no_rows_and_of_rows_that_are_no_numbers() -> None:
    assert token_logprobs(torch.zeros(0, 7), [], 2) == []
    found = token_logprobs(torch.full((1, 7), math.nan), [3], 2)[0]
    assert found.logprob is not None
    assert math.isnan(found.logprob)
