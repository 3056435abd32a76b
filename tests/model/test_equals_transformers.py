"""Greedy tokens and logprobs of the whole runtime equal those of transformers' `generate` in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmprog_runtime.request import Completion, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import MODEL, PROMPTS, oracle_greedy
from tests.support.tiny_engine import run, start

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
COUNT = 12


@pytest.fixture(scope="module", params=["torch", "cpu"])
def runtime(request: pytest.FixtureRequest) -> Iterator[LocalRuntime]:
    runtime = LocalRuntime.start(
        model=MODEL, dtype="float32", executor=request.param, max_total_tokens=4096, debug_checks=True
    )
    yield runtime
    runtime.close()


def _request(runtime: LocalRuntime, text: str, *, use_cache: bool = True) -> GenerateRequest:
    params = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True, logprobs=True)
    return GenerateRequest(runtime.tokenizer.encode(text), params, use_cache=use_cache)


def _check(runtime: LocalRuntime, results: list[Completion]) -> None:
    for text, result in zip(PROMPTS, results, strict=True):
        tokens, logprobs = oracle_greedy(tuple(runtime.tokenizer.encode(text)), COUNT)
        assert result.token_ids == tokens, text
        assert [entry.logprob for entry in result.logprobs] == pytest.approx(logprobs, abs=1e-3)


def test_cold_and_warm_one_by_one(runtime: LocalRuntime) -> None:
    runtime.flush_cache()
    cold = [run(runtime.engine, _request(runtime, text)) for text in PROMPTS]
    warm = [run(runtime.engine, _request(runtime, text)) for text in PROMPTS]
    assert all(result.usage.cached_tokens == result.usage.prompt_tokens - 1 for result in warm)
    _check(runtime, cold)
    _check(runtime, warm)


@pytest.mark.parametrize("use_cache", [True, False])
def test_all_in_one_batch(runtime: LocalRuntime, use_cache: bool) -> None:
    runtime.flush_cache()
    waiters = [start(runtime.engine, _request(runtime, text, use_cache=use_cache))[1] for text in PROMPTS]
    _check(runtime, [waiter.result() for waiter in waiters])


def test_golden_fx5(runtime: LocalRuntime) -> None:
    result = run(runtime.engine, _request(runtime, PROMPTS[0]))
    pieces = [runtime.tokenizer.decode_bytes([token_id]) for token_id in result.token_ids[:8]]
    assert pieces == [b"DEF", b"GH", b"I", b"J", b"K", b"LM", b"N", b"OP"]
