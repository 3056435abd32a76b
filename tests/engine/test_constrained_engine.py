"""Constraints inside the engine, on a tiny random model: neighbours, healing, forced text, bad input."""

from __future__ import annotations

import json
import random
import re
import threading
from dataclasses import replace

import jsonschema
import pytest

from lmprog_runtime.constraint.base import Grammar
from lmprog_runtime.errors import (
    ConstraintInvalid,
    ConstraintTooLarge,
    ConstraintUnreachable,
    ConstraintUnsupported,
    RequestAborted,
    RequestRefused,
)
from lmprog_runtime.request import Constraint, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import constraint_compiler
from tests.support.byte_tokenizer import FIRST_BYTE, make_byte_tokenizer
from tests.support.tiny_engine import TINY_VOCAB, greedy, prompt, run, start, tiny_engine
from tests.support.tiny_engine import TOKENIZER as BYTES

MERGES = [(b"a", b"b"), (b"ab", b"a"), (b" ", b"a"), (b'"', b":"), (b"t", b"r"), (b"tr", b"u")]


def _constrained(pattern: str, **more: object) -> GenerateRequest:
    params = SamplingParams(max_tokens=40, temperature=1.5, **more)  # type: ignore[arg-type]
    return GenerateRequest(prompt("x"), params, constraint=Constraint("regex", pattern))


def test_mixed_neighbours_keep_to_their_own_constraint() -> None:
    """F05, in one process: free and constrained requests with many patterns, some aborted, from 16 threads."""
    patterns = [rf"[{chr(97 + i)}-{chr(100 + i)}]{{{2 + i % 3},{4 + i % 5}}}" for i in range(20)]
    free = greedy(12)
    failures: list[str] = []
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        solo = run(engine, GenerateRequest(prompt("free"), free)).token_ids

        def user(number: int) -> None:
            chooser = random.Random(number)
            for step in range(10):
                if (number + step) % 2:
                    _, waiter = start(engine, GenerateRequest(prompt("free"), free))
                    if waiter.result().token_ids != solo:
                        failures.append("a free request changed")
                    continue
                pattern = chooser.choice(patterns)
                job_id, waiter = start(engine, _constrained(pattern))
                if chooser.random() < 0.2:
                    engine.abort(job_id)
                try:
                    text = waiter.result().text
                except RequestAborted:
                    continue
                if not re.fullmatch(pattern, text):
                    failures.append(f"{text!r} does not match {pattern}")

        threads = [threading.Thread(target=user, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert engine.call(lambda: engine.cache.held).result() == 0
    assert failures == []


@pytest.mark.parametrize("pattern", [r"(abab|ab) (true|trust)", r'\{"name":"[a-b]{1,6}","x":true\}', r"(ab|aba){2,3}!"])
@pytest.mark.parametrize("seed", range(6))
def test_forced_text_is_part_of_the_output_and_counted(pattern: str, seed: int) -> None:
    tokenizer = make_byte_tokenizer(MERGES, vocab_size=TINY_VOCAB)
    results = []
    for jump in (True, False):
        with tiny_engine(tokenizer=tokenizer, compiler=constraint_compiler(tokenizer), jump_forward=jump) as engine:
            results.append(run(engine, _constrained(pattern, seed=seed)))
    on, off = results
    for result in results:
        assert re.fullmatch(pattern, result.text)
        assert "".join(text for _, text in result.segments) == result.text
    assert on.token_ids == off.token_ids
    assert off.usage.forced_tokens == 0
    assert (on.usage.forced_tokens > 0) == any(source == "forced" for source, _ in on.segments)


def test_greedy_output_with_forced_text_equals_that_without() -> None:
    """Forced runs are the tokens that the model would have been led to: bytes are tokens here, so they are equal."""
    for pattern in (r'\{"key":"[a-d]{3}","other":(true|false)\}', r"abc(d|e)fgh[0-9]xyz"):
        request = GenerateRequest(
            prompt("x"), replace(greedy(60), ignore_eos=False), constraint=Constraint("regex", pattern)
        )
        texts = []
        for jump in (True, False):
            with tiny_engine(compiler=constraint_compiler(BYTES), jump_forward=jump) as engine:
                texts.append(run(engine, request))
        assert texts[0].token_ids == texts[1].token_ids
        assert texts[0].usage.forced_tokens >= 8


@pytest.mark.parametrize(
    "pattern",
    [r'\{"key":"[a-d]{3}","other":(true|false)\}', r"abc(d|e)fgh[0-9]xyz", "abcdefgh", r"([a-c]xy){5}", "[a-c]{9}"],
)
def test_a_forced_run_and_the_choice_behind_it_take_one_step(pattern: str) -> None:
    """Forced tokens cost no step of their own: there are as many steps as sampled tokens."""
    request = GenerateRequest(
        prompt("x"), replace(greedy(60), ignore_eos=False), constraint=Constraint("regex", pattern)
    )
    with tiny_engine(compiler=constraint_compiler(BYTES), speculation=False) as engine:
        result = run(engine, request)
        assert re.fullmatch(pattern, result.text)
        assert engine.steps == len(result.token_ids) - result.usage.forced_tokens
    with tiny_engine(compiler=constraint_compiler(BYTES), speculation=False, jump_forward=False) as engine:
        assert run(engine, request).token_ids == result.token_ids
        assert engine.steps == len(result.token_ids)


def test_others_go_on_while_a_constraint_is_compiled() -> None:
    compile_request, is_compiling, may_end = constraint_compiler(BYTES), threading.Event(), threading.Event()

    def slow(constraint: Constraint | None, prefix_text: bytes) -> Grammar:
        is_compiling.set()
        assert may_end.wait(30)
        return compile_request(constraint, prefix_text)

    with tiny_engine(compiler=slow) as engine:
        _, bound = start(engine, _constrained("[ab]{3}"))
        assert is_compiling.wait(30)
        assert len(run(engine, GenerateRequest(prompt("free"), greedy(20))).token_ids) == 20
        assert bound.deltas == []
        may_end.set()
        assert re.fullmatch("[ab]{3}", bound.result().text)


def test_each_of_several_samples_keeps_to_its_schema() -> None:
    """C16, T4: four samples of one prompt under one schema, which share its automaton and the prompt's cache."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}, "required": ["b"]}
    source = json.dumps({**schema, "additionalProperties": False, "maxProperties": 2})
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        waiters = []
        for seed in range(4):
            params = SamplingParams(max_tokens=120, temperature=1.0, seed=seed, finish="close")
            request = GenerateRequest(prompt("x"), params, constraint=Constraint("json_schema", source))
            waiters.append(start(engine, request)[1])
        results = [waiter.result() for waiter in waiters]
    for result in results:
        assert result.is_complete
        jsonschema.validate(json.loads(result.text), schema)
    assert len({result.text for result in results}) > 1


def test_healing_starts_the_output_with_what_was_held_back() -> None:
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        free = run(engine, GenerateRequest(prompt("x"), greedy(8), prefix_text=b"  "))
        bound = run(
            engine,
            GenerateRequest(prompt("x"), greedy(8), constraint=Constraint("regex", "[a-c]{3}"), prefix_text=b"  "),
        )
    assert free.token_ids[:2] == (FIRST_BYTE + 32, FIRST_BYTE + 32)
    assert bound.token_ids[:2] == (FIRST_BYTE + 32, FIRST_BYTE + 32)
    assert re.fullmatch("[a-c]{3}", bound.text)
    assert bound.kept == 5


@pytest.mark.parametrize(
    ("constraint", "error"),
    [
        (Constraint("regex", "ab**"), ConstraintInvalid),
        (Constraint("regex", "[a-"), ConstraintInvalid),
        (Constraint("regex", "(x"), ConstraintInvalid),
        (Constraint("regex", r"(a)\1"), ConstraintUnsupported),
        (Constraint("json_schema", '{"type":"strng"}'), ConstraintInvalid),
        (Constraint("json_schema", '{"type":5}'), ConstraintInvalid),
        (Constraint("json_schema", "[1]"), ConstraintInvalid),
        (Constraint("json_schema", "{"), ConstraintInvalid),
        (Constraint("json_schema", '{"$ref":"https://example.com/s.json"}'), RequestRefused),
        (Constraint("choices", "[]"), ConstraintInvalid),
    ],
)
def test_a_bad_constraint_fails_its_request_before_any_token_and_no_other(constraint: Constraint, error: type) -> None:
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        with pytest.raises(error):
            run(engine, GenerateRequest(prompt("x"), greedy(8), constraint=constraint))
        assert engine.steps == 0
        assert len(run(engine, GenerateRequest(prompt("x"), greedy(3))).token_ids) == 3


def test_what_the_tokenizer_cannot_write_is_refused_up_front() -> None:
    """C14."""
    tokenizer = make_byte_tokenizer(without=b"\x04", vocab_size=TINY_VOCAB)
    with tiny_engine(tokenizer=tokenizer, compiler=constraint_compiler(tokenizer)) as engine:
        with pytest.raises(ConstraintUnreachable):
            run(engine, GenerateRequest(prompt("x"), greedy(8), constraint=Constraint("regex", r"\x04")))
        assert (
            run(engine, GenerateRequest(prompt("x"), greedy(8), constraint=Constraint("regex", r"\x04|ok"))).text
            == "ok"
        )


def test_a_bias_against_all_that_is_allowed_still_yields_an_allowed_token() -> None:
    request = _constrained("[ab]", logit_bias={FIRST_BYTE + 97: -100.0, FIRST_BYTE + 98: -100.0})
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        assert run(engine, request).text in {"a", "b"}


def test_a_cut_output_says_that_it_is_incomplete() -> None:
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        request = GenerateRequest(prompt("x"), greedy(4), constraint=Constraint("regex", "[a-c]{10}"))
        result = run(engine, request)
    assert (result.is_complete, result.finish_reason, len(result.text)) == (False, "length", 4)


def test_json_options_of_a_request_reach_the_compiler() -> None:
    members = {name: {"const": name * 2} for name in "ab"}
    schema = json.dumps({"type": "object", "properties": members, "required": ["a", "b"], "maxProperties": 2})
    bias = {BYTES.encode("b")[0]: 50.0}
    params = replace(greedy(40), ignore_eos=False, logit_bias=bias)
    with tiny_engine(compiler=constraint_compiler(BYTES)) as engine:
        texts = [
            run(
                engine, GenerateRequest(prompt("x"), params, constraint=Constraint("json_schema", schema, **options))
            ).text
            for options in ({}, {"member_order": "any"}, {"whitespace": "dense"})
        ]
    assert texts == ['{"a": "aa", "b": "bb"}', '{"b": "bb", "a": "aa"}', '{"a":"aa","b":"bb"}']


def test_a_mask_that_meets_a_limit_fails_its_own_request() -> None:
    compile_request = constraint_compiler(BYTES)

    class Limited:
        """Allows two tokens, then has no mask any more."""

        def __init__(self, grammar: Grammar) -> None:
            self._grammar, self._left = grammar, 2

        def __getattr__(self, name: str) -> object:
            return getattr(self._grammar, name)

        def mask(self, state: int) -> object:
            self._left -= 1
            if self._left < 0:
                raise ConstraintTooLarge("The constraint needs more states than are allowed.")
            return self._grammar.mask(state)

    def compiler(constraint: Constraint | None, prefix_text: bytes) -> object:
        return Limited(compile_request(constraint, prefix_text))

    with tiny_engine(compiler=compiler) as engine:
        _, free = start(engine, GenerateRequest(prompt("free"), greedy(20)))
        with pytest.raises(ConstraintTooLarge):
            run(engine, _constrained("[a-c]{30}"))
        assert len(free.result().token_ids) == 20
        assert engine.call(lambda: (engine.cache.held, engine.failed_steps)).result() == (0, 0)
