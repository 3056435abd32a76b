"""20,000 random patterns against two oracles, Python's `re` and interegular's automata; and both cores of ours."""

from __future__ import annotations

from random import Random

import interegular
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.errors import ConstraintUnsupported
from tests.support.constraints import EVERY_BYTE, new_arena
from tests.support.regex_fuzz import (
    ALPHABET,
    PatternMaker,
    Tally,
    compare_with_interegular,
    compare_with_re,
    count_equal_pairs,
)


def _chunks(count: int, size: int = 1_500) -> list[range]:
    """So many seeds, in parts that several workers share."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _looked_at(tally: Tally) -> int:
    return tally.patterns - tally.refused


@pytest.mark.parametrize("seeds", _chunks(8_000), ids=str)
def test_plain_patterns_equal_re(seeds: range) -> None:
    tally = Tally()
    for seed in seeds:
        compare_with_re(tally, seed, looks=False)
    assert tally.refused == 0
    assert min(tally.matched, tally.texts - tally.matched) > 3 * len(seeds)


@pytest.mark.parametrize("seeds", _chunks(9_000), ids=str)
def test_anchors_and_look_around_equal_re(seeds: range) -> None:
    tally = Tally()
    for seed in seeds:
        compare_with_re(tally, seed, looks=True)
    assert _looked_at(tally) > 0.85 * len(seeds)
    assert min(tally.matched, tally.texts - tally.matched) > 2 * len(seeds)


@pytest.mark.parametrize("seeds", _chunks(4_800), ids=str)
def test_plain_patterns_have_the_languages_of_interegular(seeds: range) -> None:
    tally = Tally()
    for seed in seeds:
        compare_with_interegular(tally, seed)
    assert _looked_at(tally) > 0.8 * len(seeds)  # those of several counts are left out


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("a*", "a+"),
        ("[^a]", "."),
        (".", "[^a]"),
        ("a|ab", "ab?b"),
        ("a{2,9}", "a{2,8}"),
        ("(ab)*", "(ab|é)*"),
        ("a", ""),
    ],
)
def test_languages_that_differ_are_told_apart(ours: str, theirs: str) -> None:
    expressions = Expressions()
    root = expressions.arena.seal(expressions.regex(ours), EVERY_BYTE)
    fsm = interegular.parse_pattern(theirs).to_fsm()
    with pytest.raises(AssertionError):
        count_equal_pairs(ours, fsm, expressions.arena, root)


texts = st.lists(st.text(ALPHABET, max_size=7), min_size=6, max_size=6)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), texts)
def test_both_cores_agree(seed: int, candidates: list[str]) -> None:
    pattern, found = PatternMaker(Random(seed)).pattern(), []
    for core in ("native", "python"):
        expressions = Expressions(arena=new_arena(core))
        try:
            root = expressions.arena.seal(expressions.regex(pattern), EVERY_BYTE)
        except ConstraintUnsupported:
            return
        found.append([expressions.matches(root, text.encode()) for text in candidates] + [bool(root)])
    assert found[0] == found[1], pattern
