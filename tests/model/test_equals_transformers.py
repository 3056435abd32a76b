"""Greedy tokens and logprobs of the whole runtime are those of transformers in float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lmprog import Runtime, function, gen
from lmprog_runtime.request import Completion, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import MODEL, PROMPTS, judge
from tests.support.tiny_engine import run, run_all

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]
ALONE = 4  # tokens of answers on their own: the first, and some steps with nothing beside them
TOGETHER = {"cpu": 64, "torch": 16}  # tokens of answers side by side; the torch executor takes a third of a second each
BRANCHES = [" And", "\n\n1."]
BRANCH_TOKENS = 8
SMALL = 160  # slots of a pool for twenty answers of 32 tokens, which need five times as many


@pytest.fixture(scope="module", params=["torch", "cpu"])
def runtime(request: pytest.FixtureRequest) -> Iterator[LocalRuntime]:
    runtime = LocalRuntime.start(
        model=MODEL, dtype="float32", executor=request.param, max_total_tokens=4096, debug_checks=True
    )
    yield runtime
    runtime.close()


def _request(runtime: LocalRuntime, text: str, count: int, *, use_cache: bool = True) -> GenerateRequest:
    return GenerateRequest(runtime.tokenizer.encode(text), _greedy(count), use_cache=use_cache)


def _greedy(count: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, logprobs=True, **more)


def _run_together(runtime: LocalRuntime, requests: list[GenerateRequest]) -> list[Completion]:
    return run_all(runtime.engine, requests)


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


@pytest.mark.parametrize("runtime", ["cpu"], indirect=True)
def test_case_r01_warm_after_a_part_of_the_prompt(runtime: LocalRuntime) -> None:
    runtime.flush_cache()
    requests = [_request(runtime, text, ALONE) for text in PROMPTS]
    halves = [len(request.token_ids) // 2 for request in requests]
    parts = [
        replace(r, token_ids=r.token_ids[:half], params=_greedy(1)) for r, half in zip(requests, halves, strict=True)
    ]
    _run_together(runtime, parts)
    results = _run_together(runtime, requests)
    assert all(half <= each.usage.cached_tokens for half, each in zip(halves, results, strict=True))
    _check(runtime, results, ALONE)


@pytest.mark.parametrize("runtime", ["cpu"], indirect=True)
@pytest.mark.parametrize("from_end", [None, 2, 1])
def test_case_r03_logprobs_of_a_prompt_after_a_hit(runtime: LocalRuntime, from_end: int | None) -> None:
    request = _request(runtime, "\n".join(PROMPTS[:8]), 1)
    ids = request.token_ids
    first = 0 if from_end is None else len(ids) - from_end
    run(runtime.engine, request)
    found = run(runtime.engine, replace(request, params=_greedy(1, prompt_logprobs_start=first)))
    assert found.usage.cached_tokens == max(0, first - 1)
    wanted = [None, *judge((*ids,)).logprobs][first:]
    assert [entry.token_id for entry in found.prompt_logprobs] == ids[first:]
    assert [entry.logprob for entry in found.prompt_logprobs] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("use_cache", [True, False])
def test_all_in_one_batch(runtime: LocalRuntime, use_cache: bool) -> None:
    runtime.flush_cache()
    count = TOGETHER[runtime.executor.name]
    requests = [_request(runtime, text, count, use_cache=use_cache) for text in PROMPTS]
    _check(runtime, _run_together(runtime, requests), count)


def test_golden_fx5(runtime: LocalRuntime) -> None:
    result = run(runtime.engine, _request(runtime, PROMPTS[0], 8))
    pieces = [runtime.tokenizer.decode_bytes([token_id]) for token_id in result.token_ids]
    assert pieces == [b"DEF", b"GH", b"I", b"J", b"K", b"LM", b"N", b"OP"]


@function
def forked(s: Any, text: str) -> list[Any]:
    s += text
    branches = s.fork(len(BRANCHES))
    branches += lambda i: (
        BRANCHES[i] + gen("x", max_tokens=BRANCH_TOKENS, temperature=0, ignore_eos=True, logprobs=True)
    )
    branches.join()
    return [branch.get_meta_info("x")["logprobs"] for branch in branches]


@pytest.mark.parametrize("runtime", ["cpu"], indirect=True)
def test_forks_eight_at_a_time(runtime: LocalRuntime) -> None:
    runtime.flush_cache()
    runs = forked.run_batch([(text,) for text in PROMPTS], backend=Runtime.over(runtime), num_threads=4)
    for text, run_of_text in zip(PROMPTS, runs, strict=True):
        for branch, entries in zip(BRANCHES, run_of_text.ret_value, strict=True):
            written = tuple(entry.token_id for entry in entries)
            judged = judge((*runtime.tokenizer.encode(text + branch), *written))
            assert written == judged.greedy[-BRANCH_TOKENS:], text
            assert [entry.logprob for entry in entries] == pytest.approx(judged.logprobs[-BRANCH_TOKENS:], abs=1e-3)


def test_preempted_in_a_small_pool() -> None:
    count = 32
    small = LocalRuntime.start(model=MODEL, dtype="float32", executor="cpu", max_total_tokens=SMALL, debug_checks=True)
    results = _run_together(small, [_request(small, text, count) for text in PROMPTS])
    preemptions = small.statistics()["preemptions"]
    small.close()
    assert preemptions > 0
    _check(small, results, count)
