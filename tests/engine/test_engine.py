"""The engine on a tiny random model: equal tokens cold, warm, batched and preempted; errors in place; nothing leaks."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from lmprog_runtime.engine import Engine
from lmprog_runtime.errors import EngineFailed, PromptTooLong, RequestAborted, RequestRefused
from lmprog_runtime.request import Constraint, GenerateRequest, SamplingParams, ScoreRequest
from tests.support.byte_tokenizer import VOCAB
from tests.support.tiny_engine import (
    CONTEXT,
    TINY_VOCAB,
    Waiter,
    greedy,
    prompt,
    run,
    run_all,
    start,
    tiny_engine,
    tiny_executor,
)

TEXTS = [f"The quick brown fox number {number} jumps over" for number in range(8)]


def _idle(engine: Engine) -> tuple[int, int]:
    """(slots held by live rows, slots that leases or requests protect)."""
    return engine.call(lambda: (engine.cache.held, engine.cache.tree.protected)).result()


def _solo(text: str, params: SamplingParams) -> tuple[int, ...]:
    with tiny_engine(cached=False) as engine:
        return run(engine, GenerateRequest(prompt(text), params)).token_ids


def test_cold_warm_batched_and_without_cache_give_the_same_tokens() -> None:
    alone = [_solo(text, greedy()) for text in TEXTS]
    with tiny_engine() as engine:
        cold = [run(engine, GenerateRequest(prompt(text), greedy())) for text in TEXTS]
        warm = [run(engine, GenerateRequest(prompt(text), greedy())) for text in TEXTS]
        waiters = [start(engine, GenerateRequest(prompt(text), greedy(), use_cache=False))[1] for text in TEXTS]
        batched = [waiter.result() for waiter in waiters]
    assert [result.token_ids for result in cold] == alone
    assert [result.token_ids for result in warm] == alone
    assert [result.token_ids for result in batched] == alone
    assert all(result.usage.cached_tokens == len(prompt(text)) - 1 for result, text in zip(warm, TEXTS, strict=True))
    assert all(result.usage.cached_tokens == 0 for result in batched)


def test_a_pool_too_small_for_all_preempts_and_still_gives_the_same_tokens() -> None:
    params = greedy(40)
    alone = [_solo(text, params) for text in TEXTS]
    with tiny_engine(tiny_executor(num_slots=160)) as engine:
        results = run_all(engine, [GenerateRequest(prompt(text), params) for text in TEXTS])
        preemptions = engine.call(lambda: engine.scheduler.counters.preemptions).result()
        held, protected = _idle(engine)
    assert [result.token_ids for result in results] == alone
    assert preemptions > 0
    assert (held, protected) == (0, 0)


def test_seeded_sampling_does_not_depend_on_neighbours() -> None:
    params = replace(greedy(), temperature=1.0, seed=7, top_p=0.9)
    alone = _solo(TEXTS[0], params)
    with tiny_engine() as engine:
        others = [start(engine, GenerateRequest(prompt(text), greedy(30)))[1] for text in TEXTS]
        again = run(engine, GenerateRequest(prompt(TEXTS[0]), params))
        for waiter in others:
            waiter.result()
    assert again.token_ids == alone


def test_unseeded_samples_differ() -> None:
    params = replace(greedy(20), temperature=1.0)
    with tiny_engine() as engine:
        waiters = [start(engine, GenerateRequest(prompt(TEXTS[0]), params))[1] for _ in range(8)]
        assert len({waiter.result().token_ids for waiter in waiters}) > 1


def test_deltas_add_up_to_the_text() -> None:
    params = replace(greedy(40), temperature=1.5, seed=3)
    with tiny_engine() as engine:
        _, waiter = start(engine, GenerateRequest(prompt("x"), params))
        result = waiter.result()
    assert "".join(delta.text for delta in waiter.deltas) == result.text
    assert "\ufffd" not in result.text


def test_scores_equal_prompt_logprobs_of_the_joint_text() -> None:
    choices = [" cat", " category", " dog", " c"]
    with tiny_engine() as engine:
        scored = run(engine, ScoreRequest(prompt("A"), [prompt(choice) for choice in choices]))
        for choice, found in zip(choices, scored.choices, strict=True):
            joint = prompt("A" + choice)
            params = greedy(1, prompt_logprobs_start=1)
            result = run(engine, GenerateRequest(joint, params))
            wanted = [entry.logprob for entry in result.prompt_logprobs]
            assert found.token_ids == tuple(prompt(choice))
            assert found.logprobs == pytest.approx(wanted, abs=1e-4)


def test_many_choices_are_scored_in_parts_and_in_order() -> None:
    choices = [prompt(f"{number:03d} choice") for number in range(120)]
    with tiny_engine() as engine:
        scored = run(engine, ScoreRequest(prompt("Pick one: "), choices))
        single = run(engine, ScoreRequest(prompt("Pick one: "), [choices[77]]))
        assert _idle(engine) == (0, 0)
    assert [list(found.token_ids) for found in scored.choices] == choices
    assert scored.choices[77].logprobs == pytest.approx(single.choices[0].logprobs, abs=1e-4)


@pytest.mark.parametrize("start_at", [0, 1, 20, 38])
def test_prompt_logprobs_after_a_hit_equal_the_cold_ones(start_at: int) -> None:
    ids = prompt(TEXTS[0])
    request = GenerateRequest(ids, greedy(1, prompt_logprobs_start=start_at))
    with tiny_engine() as engine:
        cold = run(engine, request).prompt_logprobs
        warm = run(engine, request).prompt_logprobs
    assert len(cold) == len(ids) - start_at
    assert [entry.token_id for entry in warm] == ids[start_at:]
    assert (warm[0].logprob is None) == (start_at == 0)
    pairs = [(a.logprob, b.logprob) for a, b in zip(cold, warm, strict=True) if a.logprob is not None]
    assert all(b == pytest.approx(a, abs=1e-4) for a, b in pairs)


def test_salts_never_share() -> None:
    """R08: a salt is a key of its own; none, "" and "a" are three."""
    ids = prompt(TEXTS[0])
    salts = [None, "", "a", "a:b"]
    with tiny_engine() as engine:
        first = [run(engine, GenerateRequest(ids, greedy(1), salt=salt)).usage.cached_tokens for salt in salts]
        second = [run(engine, GenerateRequest(ids, greedy(1), salt=salt)).usage.cached_tokens for salt in salts]
    assert first == [0, 0, 0, 0]
    assert second == [len(ids) - 1] * 4


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (GenerateRequest([], greedy()), RequestRefused, "empty"),
        (GenerateRequest([1, 100000], greedy()), RequestRefused, "token_ids[1] is 100000"),
        (GenerateRequest([1], SamplingParams(temperature=-1)), RequestRefused, "temperature is -1"),
        (GenerateRequest([1], SamplingParams(logit_bias={9999: 1.0})), RequestRefused, "logit_bias"),
        (GenerateRequest([5] * (CONTEXT + 10), greedy(4)), PromptTooLong, str(CONTEXT)),
        (GenerateRequest([5] * 250, greedy(50)), PromptTooLong, "50"),
        (ScoreRequest([1], []), RequestRefused, "choices"),
        (ScoreRequest([1], [[5], []]), RequestRefused, "choices[1]"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence_and_others_go_on(
    request_: GenerateRequest, error: type, words: str
) -> None:
    with tiny_engine() as engine:
        with pytest.raises(error, match=words.replace("[", r"\[").replace("]", r"\]")):
            run(engine, request_)
        assert len(run(engine, GenerateRequest(prompt("fine"), greedy(3))).token_ids) == 3


def test_abort_frees_everything_within_a_step() -> None:
    with tiny_engine() as engine:
        ids = [start(engine, GenerateRequest(prompt(text), greedy(150))) for text in TEXTS]
        for job_id, waiter in ids:
            engine.abort(job_id)
            with pytest.raises(RequestAborted):
                waiter.result()
        assert _idle(engine) == (0, 0)


class _Crashing:
    """An executor that raises at one step."""

    def __init__(self, at: int) -> None:
        self._inner, self._left = tiny_executor(), at

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def step(self, batch: object) -> object:
        self._left -= 1
        if self._left == 0:
            raise ZeroDivisionError("boom")
        return self._inner.step(batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_crash_in_a_step_fails_its_requests_with_the_original_error(at: int) -> None:
    with tiny_engine(_Crashing(at)) as engine:  # type: ignore[arg-type]
        with pytest.raises(EngineFailed, match="boom") as caught:
            run(engine, GenerateRequest(prompt("one"), greedy()))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert _idle(engine) == (0, 0)
        assert run(engine, GenerateRequest(prompt("one"), greedy())).token_ids == _solo("one", greedy())


def test_a_callback_that_raises_hurts_nobody_else() -> None:
    with tiny_engine() as engine:
        bad = Waiter()
        engine.submit(GenerateRequest(prompt("a"), greedy(5)), bad.sink._replace(done=lambda _: 1 / 0))
        assert len(run(engine, GenerateRequest(prompt("b"), greedy(5))).token_ids) == 5


@pytest.mark.parametrize(
    "refused",
    [
        GenerateRequest(prompt("a" * 2 * CONTEXT), greedy(5)),  # by the scheduler, on the engine's thread
        GenerateRequest([-1], greedy(5)),  # by the checks, on the caller's thread
        GenerateRequest(prompt("a"), greedy(5), constraint=Constraint("regex", "(")),  # on a compiling thread
    ],
)
def test_a_failure_that_nobody_takes_hurts_nobody_else(refused: GenerateRequest) -> None:
    """The sink of a refused request raises; the other of its group, and all later ones, are answered."""
    with tiny_engine() as engine:
        other = Waiter()
        engine.submit_group(
            [refused, GenerateRequest(prompt("b"), greedy(5))],
            [Waiter().sink._replace(fail=lambda _: 1 / 0), other.sink],
        )
        assert len(other.result().token_ids) == 5
        assert len(run(engine, GenerateRequest(prompt("c"), greedy(5))).token_ids) == 5
        assert engine.is_alive


def test_shutdown_ends_every_request_and_every_thread() -> None:
    before = threading.active_count()
    with tiny_engine() as engine:
        waiters = [start(engine, GenerateRequest(prompt(text), greedy(200)))[1] for text in TEXTS]
    for waiter in waiters:
        with pytest.raises(RequestAborted):
            waiter.result(timeout=1)
    late = Waiter()
    engine.submit(GenerateRequest(prompt("late"), greedy()), late.sink)
    with pytest.raises(RequestAborted):
        late.result(timeout=1)
    assert threading.active_count() <= before


def test_a_lease_keeps_a_stream_in_the_cache_until_it_ends() -> None:
    with tiny_engine(tiny_executor(num_slots=200)) as engine:
        lease = engine.lease()
        first = run(engine, GenerateRequest(prompt(TEXTS[0]), greedy(10), lease=lease))
        for text in TEXTS[1:]:
            run(engine, GenerateRequest(prompt(text), greedy(10)))
        again = run(engine, GenerateRequest([*prompt(TEXTS[0]), *first.token_ids], greedy(2), lease=lease))
        assert again.usage.cached_tokens == len(prompt(TEXTS[0])) + 9
        engine.release(lease)
        assert _idle(engine) == (0, 0)


def test_rows_that_stand_for_no_token_are_never_sampled_nor_counted() -> None:
    params = replace(greedy(100), temperature=50.0, seed=1, logprobs=True, top_logprobs=100)
    with tiny_engine() as engine:
        result = run(engine, GenerateRequest(prompt("x"), params))
    assert max(result.token_ids) < VOCAB < TINY_VOCAB
    assert max(token_id for entry in result.logprobs for token_id, _ in entry.top) < VOCAB
