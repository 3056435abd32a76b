"""Guesses verified in the same step: the same outputs as without, in fewer steps where text repeats itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_runtime.cache import keys
from lmprog_runtime.drafting import MOST_DRAFTS, Acceptance, Drafter, what_followed
from lmprog_runtime.errors import ConstraintTooLarge
from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import constraint_compiler
from tests.support.byte_tokenizer import FIRST_BYTE, make_byte_tokenizer
from tests.support.tiny_engine import (
    TINY_VOCAB,
    TOKENIZER,
    Waiter,
    greedy,
    prompt,
    run,
    run_all,
    start,
    tiny_engine,
    tiny_executor,
)

PATTERNS = [None, r'\{"name":"[a-c]{2,6}","name2":"[a-c]{2,6}"\}', r"(abab|ab|ba){3,9} (true|trust)", r"(ha){1,20}!"]
MERGING = make_byte_tokenizer([(b"a", b"b"), (b"ab", b"a"), (b"t", b"r"), (b"h", b"a")], vocab_size=TINY_VOCAB)
LIKES_FEW = {FIRST_BYTE + byte: 8.0 for byte in b"ab h"}


@st.composite
def requests(draw: st.DrawFn) -> GenerateRequest:
    text = draw(st.text("abha ", min_size=1, max_size=6)) * draw(st.integers(1, 6))
    params = SamplingParams(
        max_tokens=draw(st.integers(1, 24)),
        temperature=draw(st.sampled_from([0.0, 0.0, 0.7, 1.5])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5])),
        logit_bias=draw(st.sampled_from([{}, LIKES_FEW])),
        stop=draw(st.sampled_from([(), ("ab a",), ("hh",)])),
        min_tokens=draw(st.sampled_from([0, 0, 1])),
        seed=draw(st.integers(0, 5)),
        logprobs=draw(st.booleans()),
        top_logprobs=2,
    )
    pattern = draw(st.sampled_from(PATTERNS))
    constraint = Constraint("regex", pattern) if pattern else None
    return GenerateRequest(MERGING.encode(text), params, constraint=constraint)


def _outcome(done: Completion) -> tuple[object, ...]:
    logprobs = [round(entry.logprob or 0.0, 3) for entry in done.logprobs]
    return done.text, done.token_ids, done.kept, done.finish_reason, done.matched_stop, done.segments, logprobs


def test_outputs_are_those_without_guesses() -> None:
    accepted = 0
    compiler = constraint_compiler(MERGING)
    with (
        tiny_engine(tokenizer=MERGING, compiler=compiler) as guessing,
        tiny_engine(tokenizer=MERGING, compiler=compiler, speculation=False) as plain,
    ):

        @settings(max_examples=60, deadline=None)
        @given(st.lists(requests(), min_size=1, max_size=3))
        def check(batch: list[GenerateRequest]) -> None:
            nonlocal accepted
            waiters = [start(guessing, request)[1] for request in batch]
            found = [waiter.result() for waiter in waiters]
            wanted = [run(plain, request) for request in batch]
            assert [_outcome(done) for done in found] == [_outcome(done) for done in wanted]
            accepted += sum(done.drafts[1] for done in found)

        check()
        assert guessing.call(lambda: guessing.cache.held).result() == 0
    assert accepted > 100


def test_text_that_repeats_itself_takes_fewer_steps() -> None:
    request = GenerateRequest(prompt("abcabcabc"), replace(greedy(60), logit_bias={FIRST_BYTE + 97: 100.0}))
    found, steps = [], []
    for speculation in (False, True):
        with tiny_engine(speculation=speculation) as engine:
            found.append(run(engine, request))
            steps.append(engine.call(lambda: engine.steps).result())
    assert found[0].token_ids == found[1].token_ids
    assert steps[0] == 60
    assert steps[1] < 25
    drafted, accepted = found[1].drafts
    assert 40 <= accepted <= drafted
    assert found[0].drafts == (0, 0)


def test_a_small_pool_preempts_and_the_outputs_stay_the_same() -> None:
    params = replace(greedy(40), logit_bias=LIKES_FEW)
    requests = [GenerateRequest(prompt(f"{number} ab ab ab"), params) for number in range(6)]
    with tiny_engine(speculation=False) as engine:
        wanted = [run(engine, request).token_ids for request in requests]
    with tiny_engine(tiny_executor(num_slots=100), decode_reserve=0) as engine:
        assert [done.token_ids for done in run_all(engine, requests)] == wanted
        assert engine.call(lambda: engine.scheduler.counters.preemptions).result() > 0
        assert engine.call(lambda: (engine.cache.held, engine.cache.tree.protected)).result() == (0, 0)


def test_the_end_of_a_forced_text_is_guessed() -> None:
    """`{"key":` could go on with a longer token, so jump-forward holds the end back; the guess is confirmed."""
    tokenizer = make_byte_tokenizer([(b":", b'"'), (b'"', b":")], vocab_size=TINY_VOCAB)
    constraint = Constraint("regex", r'\{"key":("a"|1)\}')
    with tiny_engine(tokenizer=tokenizer, compiler=constraint_compiler(tokenizer)) as engine:
        requests = [
            GenerateRequest(prompt("x"), SamplingParams(max_tokens=30, seed=seed), constraint=constraint)
            for seed in range(12)
        ]
        drafts = [run(engine, request).drafts for request in requests]
    assert all(drafted > 0 for drafted, _ in drafts)
    assert any(accepted > 0 for _, accepted in drafts)


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [("abcdXabcd", 3, "Xab"), ("abab", 5, "ababa"), ("abc", 5, ""), ("", 2, ""), ("xyxz", 2, "")],
)
def test_what_followed_the_last_tokens(text: str, count: int, wanted: str) -> None:
    found = what_followed(keys.encode([ord(letter) for letter in text]), count)
    assert "".join(map(chr, found)) == wanted


def test_unaligned_bytes_are_no_tokens() -> None:
    assert what_followed(keys.encode([0x00010000, 0x00020000, 5, 1, 2]), 2) == []


def test_guessing_ends_where_it_does_not_pay_and_is_tried_again_later() -> None:
    failing = Acceptance()
    steps = [failing.length(1) for _ in range(3)]
    assert min(steps) > 0
    while failing.length(1):
        failing.note(False)
    waited = 0
    while not failing.length(1):
        waited += 1
        assert waited < 200
    assert waited > 20
    failing.note(False)
    assert failing.length(1) == 0


def test_more_requests_in_a_step_make_guesses_shorter() -> None:
    perfect = Acceptance()
    for _ in range(60):
        perfect.note(True)
    lengths = [perfect.length(running) for running in (1, 4, 16, 64)]
    assert lengths[0] == MOST_DRAFTS
    assert lengths == sorted(lengths, reverse=True)
    assert Acceptance().length(64) == 0


def test_text_that_repeats_itself_is_noticed_in_a_batch() -> None:
    params = replace(greedy(60), logit_bias={FIRST_BYTE + 97: 100.0})
    with tiny_engine() as engine:
        waiters = [Waiter() for _ in range(8)]
        requests = [GenerateRequest(prompt(f"{n} abcabc"), params) for n in range(8)]
        engine.submit_group(requests, [waiter.sink for waiter in waiters])  # admitted at once, whatever the load
        results = [waiter.result() for waiter in waiters]
    assert all(done.drafts[1] > 10 for done in results)


def test_a_guess_keeps_to_the_grammar() -> None:
    grammar = constraint_compiler(TOKENIZER)(Constraint("regex", "ab(c|d)x"), b"")
    drafter = Drafter(grammar)
    key = keys.encode(prompt("abqqabqqab"))
    assert drafter.draft(lambda: key, grammar.start, 1, lambda: 8) == prompt("ab")
    after = grammar.advance(grammar.advance(grammar.start, prompt("a")[0]), prompt("b")[0])
    assert drafter.draft(lambda: key, after, 1, lambda: 8) == []


def test_a_limit_met_by_looking_ahead_costs_the_guess_only(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = constraint_compiler(TOKENIZER)(Constraint("regex", "ab(c|d)x"), b"")

    def refuse(state: int) -> list[int]:
        raise ConstraintTooLarge("too many states")

    monkeypatch.setattr(grammar, "guessed_tokens", refuse)
    assert Drafter(grammar).draft(lambda: keys.encode(prompt("ab")), grammar.start, 1, lambda: 8) == []
