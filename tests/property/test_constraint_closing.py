"""Completions: as short as brute force finds, in tokens that the grammar allows, and never longer than promised."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmprog_runtime.constraint.base import DEAD, FAR
from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintTooLarge
from lmprog_runtime.request import Constraint
from tests.property.test_constraint_fuzz import Recipe, random_grammar, random_vocabulary
from tests.support.constraints import CORES, EVERY_BYTE, bits, new_arena, regex_grammar, small_vocabulary, use_core

MOST_BRUTE_STATES = 500


def _brute_shortest(grammar: CompiledGrammar, state: int) -> int | None:
    """Bytes to an accepting state, by breadth over single bytes; None when it is far."""
    letters = [data for data in grammar.vocabulary.token_bytes if len(data) == 1]
    level, seen, length = [state], {state}, 0
    while level and len(seen) < MOST_BRUTE_STATES:
        if any(grammar.is_accepting(at) for at in level):
            return length
        following = {grammar.advance_bytes(at, byte) for at in level for byte in letters}
        level = sorted(following - seen - {DEAD})
        seen.update(level)
        length += 1
    return None


def _states(grammar: CompiledGrammar, rng: random.Random, steps: int) -> Iterator[int]:
    """The states of a random walk in tokens."""
    state = grammar.start
    for _ in range(steps):
        yield state
        allowed = bits(grammar.mask(state), grammar.vocabulary.size).nonzero()[0].tolist()
        choices = [i for i in allowed if i not in grammar.vocabulary.eos_ids]
        if not choices:
            return
        state = grammar.advance(state, rng.choice(choices))


def _check_completion(grammar: CompiledGrammar, state: int) -> bytes:
    """Follow it, asked for anew at every step: each token lowers the promise by one. Returns its bytes."""
    promised, text = grammar.tokens_to_finish(state), b""
    tokens = grammar.closing_tokens(state)
    assert len(tokens) == promised
    assert _follow(grammar, state, tokens), "the list itself ends in acceptance"
    while promised:
        token_id = grammar.closing_tokens(state)[0]
        text += grammar.vocabulary.token_bytes[token_id]
        state = grammar.advance(state, token_id)
        assert grammar.tokens_to_finish(state) == promised - 1
        promised -= 1
    assert grammar.is_accepting(state)
    return text


def _follow(grammar: CompiledGrammar, state: int, tokens: list[int]) -> bool:
    for token_id in tokens:
        state = grammar.advance(state, token_id)
    return grammar.is_accepting(state)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_completions_of_random_expressions_are_minimal_and_equal_in_both_cores(seed: int, vocabulary_seed: int) -> None:
    vocabulary = random_vocabulary(vocabulary_seed)
    with suppress(ConstraintTooLarge):
        native, python = (random_grammar(core, Recipe(seed), vocabulary) for core in CORES)
        if native is None or python is None:
            return
        pairs = zip(_states(native, random.Random(seed), 6), _states(python, random.Random(seed), 6), strict=True)
        for at, other in pairs:
            if FAR in (native.tokens_to_finish(at), python.tokens_to_finish(other)):
                assert _brute_shortest(native, at) is None
                continue
            text = _check_completion(native, at)
            assert text == _check_completion(python, other)
            brute = _brute_shortest(native, at)
            assert brute is None or len(text) == brute


SCHEMAS = [
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}, "b": {"enum": ["xyz", "no"]}},
     "required": ["a", "b"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": 17}, "minItems": 2},
    {"type": "object", "minProperties": 2, "properties": {"a": {"const": 100}, "b": {}, "c": {"type": "null"}},
     "additionalProperties": False},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["kids"],
     "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "minItems": 0}}}}},
    {"type": "string", "pattern": "^a+b{2,}$", "maxLength": 9, "minLength": 5},
    {"type": "object", "patternProperties": {"a": {"minimum": 10, "type": "number"}}, "minProperties": 1},
]  # fmt: skip


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("schema", SCHEMAS)
def test_completions_of_schemas(core: str, schema: object, monkeypatch: pytest.MonkeyPatch) -> None:
    use_core(core, monkeypatch)
    vocabulary = Vocabulary([bytes([i]) for i in range(256)] + [b'": ', b'"}', b", ", b'{"', None], [260], [])
    grammar = compile_constraint(Constraint("json_schema", json.dumps(schema)), vocabulary)
    for seed in range(4):
        for state in _states(grammar, random.Random(seed), 12):
            _check_completion(grammar, state)
    brute = _brute_shortest(grammar, grammar.start)
    text = _check_completion(grammar, grammar.start)
    assert brute is None or len(text) == brute


@pytest.mark.parametrize("core", CORES)
def test_the_shortest_text_is_the_first_in_the_order_of_bytes(core: str) -> None:
    grammar = regex_grammar(core, "(b|1a?|ab){2,3}[^a]", small_vocabulary(0))
    assert grammar.arena.shortest(grammar.start, 9) == b"11\n"
    assert grammar.arena.shortest(grammar.start, 2) is None


@pytest.mark.parametrize("core", CORES)
def test_what_is_out_of_reach_is_far(core: str) -> None:
    vocabulary = small_vocabulary(0)
    grammar = regex_grammar(core, "a{100000}", vocabulary)
    assert grammar.tokens_to_finish(grammar.start) == FAR
    assert grammar.closing_tokens(grammar.start) == []
    assert grammar.tokens_to_finish(DEAD) == FAR


def test_a_text_that_no_tokens_spell_is_far() -> None:
    vocabulary = Vocabulary([b"aa", b"b", None], eos_ids=[2], special_ids=[])
    grammar = regex_grammar("native", "a|aab", vocabulary)
    assert grammar.tokens_to_finish(grammar.start) == FAR


def test_canonical_tokens_are_taken_where_they_are_as_few() -> None:
    tokens: list[bytes | None] = [b"a", b"b", b"ab", b"ba", b"c", None]
    vocabulary = Vocabulary(tokens, [5], [], encode=lambda text: [0, 3, 4] if text == "abac" else [0, 1, 0])
    assert list(vocabulary.spelling.tokens(b"abac")) == [0, 3, 4]
    assert list(vocabulary.spelling.tokens(b"aba")) == [2, 0], "the encoder's three are one too many"


@pytest.mark.parametrize("core", CORES)
def test_long_chains_and_deep_choices_need_no_recursion(core: str) -> None:
    expressions = Expressions(arena=new_arena(core))
    words = [("ab" * 800)[:length].encode() + b"c" for length in range(1_500)]
    root = expressions.arena.seal(expressions.concat(expressions.byte_set(b"z"), expressions.words(words)), EVERY_BYTE)
    assert expressions.arena.shortest(root, 10) == b"zc"
    assert expressions.arena.shortest(expressions.arena.step(root, b"z" + words[-1][:-2]), 10) == b"c"


def test_many_threads_ask_one_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a memory that forgets all the time: each thread finds what one alone finds."""
    monkeypatch.setattr("lmprog_runtime.constraint.closing._MOST_REMEMBERED", 3)
    vocabulary = Vocabulary([bytes([i]) for i in range(256)] + [b'": ', b'"}', b", ", b'{"', None], [260], [])
    source = json.dumps(SCHEMAS[0])
    grammar = compile_constraint(Constraint("json_schema", source), vocabulary)
    states = list(_states(grammar, random.Random(1), 12))
    alone = [grammar.closing_tokens(state) for state in states]

    def ask(seed: int) -> bool:
        order = random.Random(seed).sample(range(len(states)), len(states))
        return all(grammar.closing_tokens(states[i]) == alone[i] for i in order * 20)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(16)))
