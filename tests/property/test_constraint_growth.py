"""What the cache of constraints holds stays within its bytes, however the automata in it grow once they are in use."""

from __future__ import annotations

import json
import random
import weakref
from collections.abc import Callable

import pytest

from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.compiler import compile_constraint, prefix_constraint
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.lru import LruByBytes
from lmprog_runtime.constraint.native import load_library
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.request import Constraint

pytestmark = pytest.mark.skipif(load_library() is None, reason="the C++ core is not built")

LIMIT = 8 * 2**20


def as_large_as_a_models() -> Vocabulary:
    """100,000 tokens: a mask takes 12 KB."""
    rng = random.Random(0)
    words = {bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 6))) for _ in range(110_000)}
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += sorted(words)[: 100_000 - 257]
    return Vocabulary([*tokens, None], eos_ids=[len(tokens)], special_ids=[])


def schema(number: int) -> Constraint:
    members = {f"k{number}-{i}": {"type": "string"} for i in range(8)}
    source = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return Constraint("json_schema", json.dumps(source))


def instance(number: int) -> bytes:
    return json.dumps({f"k{number}-{i}": "ab" for i in range(8)}).encode()


def look_at_masks(grammar: CompiledGrammar, text: bytes) -> None:
    state = grammar.start
    for byte in text:
        grammar.mask(state)
        state = grammar.advance_bytes(state, bytes([byte]))
        assert state != DEAD


def look_for_ends(grammar: CompiledGrammar, text: bytes) -> None:
    state = grammar.start
    for byte in text:
        grammar.tokens_to_finish(state)
        grammar.forced_tokens(state)
        state = grammar.advance_bytes(state, bytes([byte]))


def look_behind_a_prefix(grammar: CompiledGrammar, text: bytes) -> None:
    """Token healing: a grammar that shares the automaton of the cached one."""
    look_at_masks(prefix_constraint(b"ab", grammar, grammar.vocabulary), b"ab" + text)


CONSTRAINTS: dict[str, Callable[[int], tuple[Constraint, bytes]]] = {
    "schemas": lambda number: (schema(number), instance(number)),
    "patterns": lambda number: (Constraint("regex", f"{number}:[a-z]{{3,200}}!"), f"{number}:".encode() + b"ab" * 50),
    "choices": lambda number: (
        Constraint("choices", json.dumps([f"{number} {'abc' * i}" for i in range(30)])),
        f"{number} {'abc' * 29}".encode(),
    ),
}


@pytest.fixture(scope="module")
def large() -> Vocabulary:
    return as_large_as_a_models()


@pytest.mark.parametrize("look", [look_at_masks, look_for_ends, look_behind_a_prefix])
@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_automata_that_grow_in_use_stay_within_the_caches_bytes(
    kind: str, look: Callable[[CompiledGrammar, bytes], None], large: Vocabulary
) -> None:
    """Each is used once and never asked for again."""
    large.compiled = LruByBytes(most_bytes=LIMIT)
    alive: weakref.WeakSet[CompiledGrammar] = weakref.WeakSet()
    for number in range(40):
        constraint, text = CONSTRAINTS[kind](number)
        grammar = compile_constraint(constraint, large)
        alive.add(grammar)
        look(grammar, text)
        del grammar
        assert sum(kept.nbytes for kept in alive) <= LIMIT
    assert 0 < len(alive) <= 40
    assert large.compiled.nbytes <= LIMIT
