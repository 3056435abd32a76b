"""Costly, hostile and concurrent constraints: they end soon, in a result or in an error that names the limit."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable

import pytest

from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.limits import DEFAULT_LIMITS
from lmprog_runtime.constraint.lru import LruByBytes
from lmprog_runtime.constraint.native import load_library
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnreachable
from lmprog_runtime.request import Constraint
from tests.support.constraints import CORES, EVERY_BYTE, bits, new_arena, small_vocabulary

SECONDS = 2.0  # of processor time: the machine may be busy

native_only = pytest.mark.skipif(load_library() is None, reason="the C++ core is not built")


def _generate(constraint: Constraint, vocabulary: Vocabulary, seed: int = 0, tokens: int = 200) -> bytes | None:
    """Random tokens under the masks; the text when the constraint was satisfied in time."""
    grammar = compile_constraint(constraint, vocabulary)
    rng = random.Random(seed)
    state, text = grammar.start, bytearray()
    for _ in range(tokens):
        choices = bits(grammar.mask(state), vocabulary.size).nonzero()[0].tolist()
        token_id = rng.choice(choices)
        if token_id in vocabulary.eos_ids:
            return bytes(text)
        text += vocabulary.token_bytes[token_id]
        state = grammar.advance(state, token_id)
    return None


@native_only
@pytest.mark.parametrize(
    "pattern",
    [
        "(a|b)*a(a|b){18}",
        "((a{1,50}){1,50}){1,50}",
        ".{0,5000}",
        "(a?){40}a{40}",
        "(a|aa)+b|(a*)*c",
        "(?:a{0,1000}b{0,1000}){0,1000}",
        "(?=.*a{20})(?=.*b{20})[ab]*",
        "(?!.*(ab){9}).{0,3000}",
        "|".join(f"a{i}b" for i in range(5_000)),
        "(a|b|ab){100000}",
    ],
)
def test_explosive_patterns_end_in_a_result_or_a_limit(pattern: str) -> None:
    vocabulary = small_vocabulary(0, alphabet="ab1023456789 ")
    start = time.process_time()
    text = None
    try:
        text = _generate(Constraint("regex", pattern), vocabulary)
    except ConstraintTooLarge as error:
        message = str(error)
        assert re.search("states|MiB|time limit|alternatives|operators", message)
    assert time.process_time() - start < SECONDS
    if text is not None and pattern == "(a?){40}a{40}":  # `re` itself would take years
        assert text == b"a" * len(text)
        assert 40 <= len(text) <= 80
    elif text is not None and len(pattern) < 25:
        assert re.fullmatch(pattern, text.decode())


@native_only
def test_fifty_thousand_choices() -> None:
    vocabulary = small_vocabulary(0, alphabet="ab1023456789 ")
    choices = [f"a{i} b{i % 7}" for i in range(50_000)]
    start = time.process_time()
    text = _generate(Constraint("choices", json.dumps(choices)), vocabulary)
    assert time.process_time() - start < SECONDS
    assert text is not None
    assert text.decode() in choices


@pytest.mark.parametrize("core", CORES)
def test_nested_operators_are_bounded(core: str) -> None:
    """The derivative recurses through them."""
    expressions = Expressions(arena=new_arena(core))

    def nest(x: int) -> None:
        for _ in range(60_000):
            x = expressions.repeat(expressions.concat(expressions.repeat(x, 0), expressions.literal(b"b")), 0)

    with pytest.raises(ConstraintTooLarge, match="nests more than 150 operators"):
        nest(expressions.literal(b"a"))


@pytest.mark.parametrize("core", CORES)
def test_long_chains_are_no_nesting(core: str) -> None:
    """50,000 optional parts in a row, and a literal of as many bytes, need a loop and not a deep stack."""
    count = 50_000 if core == "native" else 2_000
    expressions = Expressions(arena=new_arena(core))
    optional = expressions.optional(expressions.literal(b"a"))
    chain = expressions.concat(expressions.literal(b"b" * count), *[optional] * 100)
    root = expressions.arena.seal(chain, EVERY_BYTE)
    assert expressions.matches(root, b"b" * count + b"a" * 100)
    assert not expressions.matches(root, b"b" * count + b"a" * 101)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("limits", "names"),
    [
        (DEFAULT_LIMITS._replace(nodes=500), "more than 500 states"),
        (DEFAULT_LIMITS._replace(arena_bytes=2**17), "more than 0 MiB"),
        (DEFAULT_LIMITS._replace(width=300), "more than 300 alternatives"),
        (DEFAULT_LIMITS._replace(compile_seconds=0.001), "time limit"),
    ],
)
def test_each_limit_is_named(core: str, limits: tuple[int, ...], names: str) -> None:
    def build() -> None:
        expressions = Expressions(arena=new_arena(core, DEFAULT_LIMITS._replace(**limits._asdict())))  # type: ignore[attr-defined]
        words = [f"{i}x{i % 13}".encode() for i in range(3_000)]
        expressions.alternate([expressions.literal(word) for word in words])

    with pytest.raises(ConstraintTooLarge, match=names):
        build()


@pytest.mark.parametrize("core", CORES)
def test_references(core: str) -> None:
    expressions = Expressions(arena=new_arena(core))
    left, loop, undefined = (expressions.reference() for _ in range(3))
    expressions.define(
        left, expressions.concat(expressions.optional(expressions.literal(b"a")), left, expressions.literal(b"b"))
    )
    with pytest.raises(ConstraintInvalid, match="refers to itself before it reads"):
        expressions.arena.seal(left, EVERY_BYTE)
    with pytest.raises(ConstraintInvalid, match="not defined"):
        expressions.arena.seal(undefined, EVERY_BYTE)
    with pytest.raises(ValueError, match="nullable"):
        expressions.define(undefined, expressions.EPSILON)
    expressions.define(loop, expressions.concat(expressions.literal(b"a"), loop))
    assert expressions.arena.seal(loop, EVERY_BYTE) == expressions.EMPTY  # no finite text
    mixed = expressions.alternate([expressions.literal(b"c"), expressions.concat(expressions.literal(b"c"), loop)])
    root = expressions.arena.seal(mixed, EVERY_BYTE)
    assert root == expressions.literal(b"c")


@pytest.mark.parametrize("core", CORES)
def test_emptiness_has_three_answers(core: str) -> None:
    e = Expressions(arena=new_arena(core, DEFAULT_LIMITS._replace(search_states=200)))
    a, b = e.literal(b"a"), e.literal(b"b")
    assert e.disjoint(a, b) is True
    assert e.disjoint(e.repeat(a, 2, 9), e.repeat(a, 9, 20)) is False
    assert e.disjoint(e.repeat(a, 2, 9), e.repeat(a, 10, 20)) is True
    multiples = [e.repeat(e.literal(b"a" * step), 1) for step in (7, 11, 13)]
    assert e.is_empty(e.intersect(*multiples)) is None  # the first is 1,001 long
    assert e.is_empty(e.intersect(e.reference(), a)) is None
    assert e.is_empty(e.repeat(a, 2_000, 3_000)) is False


def test_refusals_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = small_vocabulary(0)
    bad = Constraint("regex", "ab**")
    with pytest.raises(ConstraintInvalid) as first:
        compile_constraint(bad, vocabulary)
    monkeypatch.setattr("lmprog_runtime.constraint.compiler._compile", pytest.fail)
    with pytest.raises(ConstraintInvalid) as second:
        compile_constraint(bad, vocabulary)
    assert str(first.value) == str(second.value)
    assert first.value is not second.value


@native_only
def test_the_cache_stays_bounded_under_distinct_constraints() -> None:
    vocabulary = small_vocabulary(0)
    vocabulary.compiled = LruByBytes(most_bytes=2**20, most_entries=300)
    for i in range(2_000):
        source = f"a{{{i}}}b"
        if i % 3 == 0:
            source += "**"
            with pytest.raises(ConstraintInvalid):
                compile_constraint(Constraint("regex", source), vocabulary)
        else:
            grammar = compile_constraint(Constraint("regex", source), vocabulary)
            grammar.mask(grammar.start)
    assert len(vocabulary.compiled) <= 300
    assert vocabulary.compiled.nbytes <= 2**20
    kept = compile_constraint(Constraint("regex", "a{1999}b"), vocabulary)
    assert compile_constraint(Constraint("regex", "a{1999}b"), vocabulary) is kept


def _in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors


@pytest.mark.parametrize("core", CORES)
def test_threads_do_not_disturb_each_other(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 threads x 10 requests, some over one grammar, some over their own: every text matches its own pattern."""
    if core == "python":
        monkeypatch.setattr("lmprog_runtime.constraint.arena.load_library", lambda: None)
    vocabulary = small_vocabulary(0)
    patterns = ["a+1", "b{2,5}", "(a|b)*1,", ".{3,9}", "[^a]+b", "(?!ab)[ab]{2,8}"]

    def work(index: int) -> None:
        for turn in range(10):
            pattern = patterns[turn % 3] if turn % 2 else f"{patterns[index % 6]}(?:{'b' * (index % 4)})"
            text = _generate(Constraint("regex", pattern), vocabulary, seed=index * 10 + turn)
            assert text is None or re.fullmatch(pattern, text.decode())

    assert _in_threads(16 if core == "native" else 4, work) == []


def test_bad_choices() -> None:
    vocabulary = small_vocabulary(0)
    for source in ("[]", "{}", "[1]", "nonsense", '"a"'):
        with pytest.raises(ConstraintInvalid, match="JSON list"):
            compile_constraint(Constraint("choices", source), vocabulary)
    with pytest.raises(ConstraintUnreachable, match="'x'"):
        compile_constraint(Constraint("choices", '["a", "x"]'), vocabulary)
    grammar = compile_constraint(Constraint("choices", '["a", "a", "ab", ""]'), vocabulary)
    assert [grammar.is_accepting(grammar.advance_bytes(grammar.start, text)) for text in (b"", b"a", b"ab")] == [
        True
    ] * 3
    assert grammar.advance_bytes(grammar.start, b"b") == DEAD
