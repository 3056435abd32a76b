"""Greedy tokens and logprobs of the whole runtime are those of transformers in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmprog_runtime.request import Completion, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import MODEL, PROMPTS, judge
from tests.support.tiny_engine import run, start

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
ALONE = 4  # tokens of answers on their own: the first, and some steps with nothing beside them
TOGETHER = {"cpu": 64, "torch": 16}  # tokens of answers side by side; the torch executor takes a third of a second each


@pytest.fixture(scope="module", params=["torch", "cpu"])
def runtime(request: pytest.FixtureRequest) -> Iterator[LocalRuntime]:
    runtime = LocalRuntime.start(
        model=MODEL, dtype="float32", executor=request.param, max_total_tokens=4096, debug_checks=True
    )
    yield runtime
    runtime.close()


def _request(runtime: LocalRuntime, text: str, count: int, *, use_cache: bool = True) -> GenerateRequest:
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=True)
    return GenerateRequest(runtime.tokenizer.encode(text), params, use_cache=use_cache)


def _check(runtime: LocalRuntime, results: list[Completion], count: int) -> None:
    for text, result in zip(PROMPTS, results, strict=True):
        judged = judge((*runtime.tokenizer.encode(text), *result.token_ids))
        assert len(result.token_ids) == count
        assert result.token_ids == judged.greedy[-count:], text
        assert [entry.logprob for entry in result.logprobs] == pytest.approx(judged.logprobs[-count:], abs=1e-3)


def test_cold_and_warm_one_by_one(runtime: LocalRuntime) -> None:
    runtime.flush_cache()
    cold = [run(runtime.engine, _request(runtime, text, ALONE)) for text in PROMPTS]
    warm = [run(runtime.engine, _request(runtime, text, ALONE)) for text in PROMPTS]
    assert all(result.usage.cached_tokens == result.usage.prompt_tokens - 1 for result in warm)
    _check(runtime, cold, ALONE)
    _check(runtime, warm, ALONE)


@pytest.mark.parametrize("use_cache", [True, False])
def test_all_in_one_batch(runtime: LocalRuntime, use_cache: bool) -> None:
    runtime.flush_cache()
    count = TOGETHER[runtime.executor.name]
    waiters = [start(runtime.engine, _request(runtime, text, count, use_cache=use_cache))[1] for text in PROMPTS]
    _check(runtime, [waiter.result() for waiter in waiters], count)


def test_golden_fx5(runtime: LocalRuntime) -> None:
    result = run(runtime.engine, _request(runtime, PROMPTS[0], 8))
    pieces = [runtime.tokenizer.decode_bytes([token_id]) for token_id in result.token_ids]
    assert pieces == [b"DEF", b"GH", b"I", b"J", b"K", b"LM", b"N", b"OP"]
