"""Random expressions (counters, intersections, complements, lexemes, recursion, member lists) over vocabularies with
long
tokens: masks are what brute force says, both cores give the same, and no walk comes to a dead end."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.limits import DEFAULT_LIMITS
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintTooLarge
from tests.support.constraints import CORES, bits, brute_force, new_arena

ALPHABET = b"ab,"
BRIEF = DEFAULT_LIMITS._replace(compile_seconds=0.1, walk_seconds=0.1)


class Recipe:
    """Builds one random expression, the same one in every arena."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def build(self, e: Expressions) -> int:
        self.rng, self.e = random.Random(self.seed), e
        self.value = e.reference()
        body = self.part(3)
        start = e.concat(e.byte_set(b"ab"), body)
        e.define(self.value, e.alternate([start, e.literal(b"b")]))
        return self.value if self.rng.random() < 0.5 else e.concat(start, e.literal(b","))

    def part(self, depth: int) -> int:
        rng = self.rng
        if depth == 0:
            return self.leaf()
        kinds: list[Callable[[int], int]] = [
            self.concat, self.concat, self.choice, self.counted, self.counted,
            self.both, self.without, self.unit, self.members,
        ]  # fmt: skip
        return rng.choice(kinds)(depth - 1)

    def leaf(self) -> int:
        e, rng = self.e, self.rng
        data = bytes(rng.choices(ALPHABET, k=rng.randint(1, 3)))
        literal = e.literal(data)
        return rng.choice([literal, e.byte_set(data), e.optional(literal), e.concat(e.byte_set(b"ab"), self.value)])

    def concat(self, depth: int) -> int:
        return self.e.concat(*(self.part(depth) for _ in range(self.rng.randint(2, 3))))

    def choice(self, depth: int) -> int:
        return self.e.alternate(self.part(depth) for _ in range(self.rng.randint(2, 3)))

    def counted(self, depth: int) -> int:
        rng = self.rng
        low = rng.choice([0, 0, 1, 2, 5, 14])
        high = rng.choice([None, low, low + 1, low + 9, low + 13, low + 40])
        return self.e.repeat(rng.choice([self.leaf, lambda: self.part(depth)])(), low, high)

    def both(self, depth: int) -> int:
        limit = self.e.repeat(
            self.e.byte_set(ALPHABET), self.rng.choice([0, 1, 9]), self.rng.choice([None, 10, 14, 30])
        )
        return self.e.intersect(self.e.repeat(self.part(depth), 0), limit)

    def without(self, depth: int) -> int:
        words = [bytes(self.rng.choices(ALPHABET, k=self.rng.randint(0, 6))) for _ in range(3)]
        excluded = self.rng.choice([lambda: self.e.words(words), lambda: self.part(depth)])()
        return self.e.intersect(
            self.e.repeat(self.e.byte_set(b"ab"), 0, self.rng.choice([None, 20])), self.e.complement(excluded)
        )

    def unit(self, depth: int) -> int:
        return self.e.concat(self.e.lexeme(self.e.concat(self.part(depth), self.e.literal(b","))), self.part(depth))

    def members(self, depth: int) -> int:
        e, rng = self.e, self.rng
        pairs = [
            (e.concat(e.literal(bytes([97 + i % 2])), self.leaf()), rng.random() < 0.4)
            for i in range(rng.randint(1, 3))
        ]
        extra = rng.choice([e.EMPTY, e.concat(e.literal(b"b"), self.leaf())])
        low = rng.choice([0, 0, 1, 2])
        high = rng.choice([None, low + 1, 5])
        listed = e.members(
            pairs, separator=e.literal(b","), extra=extra, low=low, high=high, any_order=rng.random() < 0.5
        )
        return e.concat(e.literal(b"a"), listed)


def random_vocabulary(seed: int) -> Vocabulary:
    rng = random.Random(seed)
    tokens: list[bytes | None] = [bytes([byte]) for byte in ALPHABET]
    tokens += [bytes(rng.choices(ALPHABET, weights=[5, 3, 1], k=rng.randint(2, 16))) for _ in range(120)]
    tokens += [letter * length for letter in (b"a", b"b", b"ab") for length in (9, 10, 11, 15, 16)]
    return Vocabulary([*tokens, None], eos_ids=[len(tokens)], special_ids=[])


def random_grammar(core: str, recipe: Recipe, vocabulary: Vocabulary) -> CompiledGrammar | None:
    expressions = Expressions(arena=new_arena(core, BRIEF))
    root = expressions.arena.seal(recipe.build(expressions), vocabulary.producible)
    return CompiledGrammar(expressions.arena, root, vocabulary) if root else None


def _walk(native: CompiledGrammar, python: CompiledGrammar, vocabulary: Vocabulary, rng: random.Random) -> None:
    states = [native.start, python.start]
    for _ in range(8):
        allowed = bits(native.mask(states[0]), vocabulary.size)
        assert (allowed == brute_force(native, states[0], vocabulary)).all()
        assert (allowed == bits(python.mask(states[1]), vocabulary.size)).all()
        assert allowed.any(), "a dead end"
        choices = [i for i in allowed.nonzero()[0].tolist() if i not in vocabulary.eos_ids]
        if not choices:
            return
        token_id = rng.choice(choices)
        states = [grammar.advance(state, token_id) for grammar, state in zip((native, python), states, strict=True)]
        assert DEAD not in states


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_masks_of_random_expressions(seed: int, vocabulary_seed: int) -> None:
    vocabulary = random_vocabulary(vocabulary_seed)
    try:
        native, python = (random_grammar(core, Recipe(seed), vocabulary) for core in CORES)
    except ConstraintTooLarge:
        return
    if native is None or python is None:
        assert native is python
        return
    with suppress(ConstraintTooLarge):  # some of them are
        _walk(native, python, vocabulary, random.Random(seed))
