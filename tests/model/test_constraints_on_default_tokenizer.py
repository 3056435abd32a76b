"""Constraints over the default model's 49,152 tokens: all of them are tried, byte by byte."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lmprog_runtime.constraint.compiler import compile_constraint, prefix_constraint, warm_up
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintUnreachable
from lmprog_runtime.request import Constraint
from tests.support.constraints import bits, brute_force
from tests.support.default_model import default_tokenizer

pytestmark = pytest.mark.model
SCHEMAS = Path(__file__).parents[2].parent / "shared/data/jsonschemabench_dev.jsonl"


@cache
def vocabulary() -> Vocabulary:
    tokenizer = default_tokenizer()
    return Vocabulary(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids, tokenizer.encode)


def grammar_of(pattern: str) -> CompiledGrammar:
    return compile_constraint(Constraint("regex", pattern), vocabulary())


def allowed(grammar: CompiledGrammar, state: int) -> np.ndarray:
    return bits(grammar.mask(state), vocabulary().size)


@pytest.mark.parametrize(
    ("pattern", "prefixes"),
    [
        ("[😀-🙏]+", ["", "😀", "😀"]),
        ("é+", ["", "é"]),
        (".{1,3}", ["", "世", "世界"]),
        (" ?😨", ["", " "]),
        ("[^a]*", ["", "b"]),
        (r"(\d{1,3}\.){3}\d{1,3}", ["", "1.1."]),
        (r"(?i)[a-z ]{0,40}\.", ["", "Hello "]),
    ],
)
def test_masks_equal_brute_force_over_all_tokens(pattern: str, prefixes: list[str]) -> None:
    grammar = grammar_of(pattern)
    states = [grammar.advance_bytes(grammar.start, prefix.encode()) for prefix in prefixes]
    states.append(
        grammar.advance_bytes(grammar.start, prefixes[-1].encode() + "世😀".encode()[3:5])
    )  # inside a character
    for state in states:
        if state >= 0:
            assert (allowed(grammar, state) == brute_force(grammar, state, vocabulary())).all()


@pytest.mark.parametrize(
    "schema", ["{}", '{"type": "string", "maxLength": 9}', '{"properties": {"a": {"type": "number"}}}']
)
def test_masks_of_schemas_equal_brute_force(schema: str) -> None:
    grammar = compile_constraint(Constraint("json_schema", schema), vocabulary())
    for prefix in ("", '"', '"a', '{"', '{"a', '{"a": ', '{"a": 1', '{"a": 1, "b', '"\\u00e', "12"):
        state = grammar.advance_bytes(grammar.start, prefix.encode())
        if state >= 0:
            assert (allowed(grammar, state) == brute_force(grammar, state, vocabulary())).all()


def test_tokens_that_mix_a_space_and_half_a_character() -> None:
    grammar = grammar_of(" ?😨")
    mixed = [i for i, data in enumerate(vocabulary().token_bytes) if data in (b" \xf0\x9f", b" \xf0\x9f\x98")]
    assert len(mixed) == 2
    assert allowed(grammar, grammar.start)[mixed].all()


@pytest.mark.parametrize("pattern", ["\x04", "[\U00040000]", "a\x1db", "(x\x04)+"])
def test_what_the_tokenizer_cannot_write_is_refused(pattern: str) -> None:
    with pytest.raises(ConstraintUnreachable, match="no token has the byte 0x"):
        grammar_of(pattern)


def test_special_tokens_as_text() -> None:
    """The characters of an end token may be written; its id is no text."""
    tokenizer = default_tokenizer()
    grammar = grammar_of(r"<\|im_end\|>")
    state = grammar.start
    for token_id in tokenizer.encode("<|im_end|>"):
        assert not allowed(grammar, state)[sorted(tokenizer.special_ids)].any()
        state = grammar.advance(state, token_id)
    assert grammar.is_final(state)
    assert set(allowed(grammar, state).nonzero()[0].tolist()) == set(tokenizer.eos_ids)


def test_healing_a_space() -> None:
    grammar = prefix_constraint(b" ", None, vocabulary())
    texts = {vocabulary().token_bytes[i] for i in allowed(grammar, grammar.start).nonzero()[0]}
    assert b" Paris" in texts
    assert all(text.startswith(b" ") for text in texts)


def test_warm_up_leaves_the_first_masks_cheap() -> None:
    warm_up(vocabulary())
    grammar = compile_constraint(
        Constraint("json_schema", '{"properties": {"warm": {"type": "string"}}}'), vocabulary()
    )
    state = grammar.advance_bytes(grammar.start, b'{"warm": "')
    start = time.thread_time()
    grammar.mask(state)
    assert (
        time.thread_time() - start < 0.002
    )  # a walk over all tokens and the exits of a string takes several times that


EXTRACTION = {
    "type": "object",
    "properties": {
        "name_of_the_person": {"type": "string"},
        "orderId": {"type": "integer"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"enum": ["Paris", "Parma", "Rome"]}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"enum": ["new", "newest", "old"]}, "maxItems": 2},
    },
    "required": ["name_of_the_person", "orderId", "address", "tags"],
    "additionalProperties": False,
}


def _forced_share(schema: str, instance: str) -> tuple[int, int]:
    """Follow an instance; each forced run must be what the tokenizer makes of the finished text. Forced, all."""
    grammar = compile_constraint(Constraint("json_schema", schema), vocabulary())
    tokens = default_tokenizer().encode(instance)
    state, at, forced_count = grammar.start, 0, 0
    while at < len(tokens):
        forced = grammar.forced_tokens(state)
        assert forced == tokens[at : at + len(forced)], instance
        step = forced or tokens[at : at + 1]
        forced_count += len(forced)
        for token_id in step:
            state = grammar.advance(state, token_id)
        if state < 0:
            return forced_count, at  # the instance has its members in another order
        at += len(step)
    return forced_count, len(tokens)


def test_forced_runs_are_canonical() -> None:
    value = {
        "name_of_the_person": "Ada L.",
        "orderId": 21,
        "address": {"street": "Rue 1", "city": "Parma"},
        "tags": ["newest", "old"],
    }
    forced, count = _forced_share(json.dumps(EXTRACTION), json.dumps(value))
    assert forced > count / 3


@pytest.mark.skipif(not SCHEMAS.exists(), reason="the schema collection is not beside the checkout")
def test_forced_runs_on_real_schemas_are_canonical() -> None:
    forced = total = 0
    rows = [json.loads(line) for line in SCHEMAS.read_text().splitlines()[::40]]
    for row in rows:
        for test in row["tests"]:
            if test["valid"]:
                try:
                    run = _forced_share(json.dumps(row["schema"]), json.dumps(test["data"], ensure_ascii=False))
                except ValueError:  # refused by name, or text that this tokenizer cannot write
                    continue
                forced, total = forced + run[0], total + run[1]
    print(f"{forced} of {total} tokens forced")
    assert forced > 0.1 * total
