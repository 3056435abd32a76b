"""Random patterns against two oracles: Python's `re`, and interegular's automata."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from typing import Any

import interegular
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.errors import ConstraintTooLarge, ConstraintUnsupported
from tests.support.constraints import EVERY_BYTE, new_arena, random_text

ALPHABET = "ab1_ \né世A"
ATOMS = [
    "a", "b", "1", "é", "世", "ab", ".", r"\w", r"\d", r"\s", r"\W", "[ab]", "[^a]", "[a-b1]", r"[^\s1]", r"[\w ]",
    "(?i:a)", "(?i:É)", "(?a:\\w)", r"\n", "(?s:.)",
]  # fmt: skip
LOOKS = [
    r"\b",
    r"\B",
    "^",
    "$",
    r"\A",
    r"\Z",
    "(?=a)",
    "(?!b)",
    "(?=.*1)",
    "(?!a|b$)",
    "(?<=a)",
    "(?<!b)",
    "(?m:^)",
    "(?m:$)",
]
QUANTIFIERS = ["", "*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "??"]
MATCHING = settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(inner, st.sampled_from(QUANTIFIERS)).map(lambda t: f"({t[0]}){t[1]}")
    choices = st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
    return groups | choices | st.lists(inner, min_size=1, max_size=3).map("".join)


quantified = st.tuples(st.sampled_from(ATOMS), st.sampled_from(QUANTIFIERS)).map(lambda t: f"(?:{t[0]}){t[1]}")
plain_patterns = st.recursive(quantified, _combined, max_leaves=6)
any_patterns = st.recursive(quantified | st.sampled_from(LOOKS), _combined, max_leaves=6)
texts = st.lists(st.text(ALPHABET, max_size=7), min_size=6, max_size=6)


def _agrees(pattern: str, candidates: list[str], seed: int) -> None:
    """On random texts, on texts that the automaton itself makes, and on those with one character changed."""
    with suppress(ConstraintUnsupported, ConstraintTooLarge):
        _compare(pattern, candidates, seed)


def _compare(pattern: str, candidates: list[str], seed: int) -> None:
    expressions = Expressions()
    root = expressions.regex(pattern)
    compiled = re.compile(pattern)
    root = expressions.arena.seal(root, EVERY_BYTE)
    rng = random.Random(seed)
    made = [text for _ in range(3) if root and (text := random_text(expressions.arena, root, rng, 12)) is not None]
    candidates = [*candidates, *(text.decode() for text in made)]
    candidates += [text[:-1] + rng.choice(ALPHABET) for text in candidates[-3:] if text]
    for text in candidates:
        assert expressions.matches(root, text.encode()) == (compiled.fullmatch(text) is not None), text


@MATCHING
@given(plain_patterns, texts, st.integers(0, 2**16))
def test_plain_patterns_equal_re(pattern: str, candidates: list[str], seed: int) -> None:
    _agrees(pattern, candidates, seed)


@MATCHING
@given(any_patterns, texts, st.integers(0, 2**16))
def test_anchors_and_look_around_equal_re(pattern: str, candidates: list[str], seed: int) -> None:
    _agrees(pattern, candidates, seed)


def _accepts(fsm: Any, text: str) -> bool:
    return bool(fsm.accepts(text))


SIMPLE = st.recursive(
    st.tuples(
        st.sampled_from(["a", "b", "[ab]", "[^a]", "ab", "."]), st.sampled_from(["", "*", "+", "?", "{1,3}"])
    ).map(lambda t: f"({t[0]}){t[1]}"),
    _combined,
    max_leaves=5,
)


@settings(max_examples=350, deadline=None, suppress_health_check=list(HealthCheck))
@given(SIMPLE, st.integers(0, 2**16))
def test_plain_patterns_equal_interegular(pattern: str, seed: int) -> None:
    """60 texts each: 21,000 comparisons."""
    pattern = re.sub(r"([*+?}])\?", r"\1", pattern)  # laziness, which interegular does not know
    assume(pattern.count("{") <= 2)  # it unrolls counts, and takes minutes where they are nested
    fsm = interegular.parse_pattern(pattern).to_fsm()
    expressions = Expressions()
    root = expressions.regex(pattern)
    rng = random.Random(seed)
    for text in ("".join(rng.choices("abc", k=rng.randint(0, 6))) for _ in range(60)):
        assert expressions.matches(root, text.encode()) == _accepts(fsm, text), text


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_patterns, texts)
def test_both_cores_agree(pattern: str, candidates: list[str]) -> None:
    found = []
    for core in ("native", "python"):
        expressions = Expressions(arena=new_arena(core))
        try:
            root = expressions.arena.seal(expressions.regex(pattern), EVERY_BYTE)
        except ConstraintUnsupported:
            return
        found.append([expressions.matches(root, text.encode()) for text in candidates] + [bool(root)])
    assert found[0] == found[1]
