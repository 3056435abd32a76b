"""Regex stops: the match that ends first, found in any split of the text, without backtracking."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog_runtime.errors import ConstraintInvalid, RequestRefused
from lmprog_runtime.stop_regex import RegexStopMatcher

PATTERNS = [r"ab+c", r"\n\n", r"[ab]{2}c?c", r"(a|ba)b", r"c.a", r"é|aa"]


def _first_end(pattern: str, text: str) -> tuple[int, int] | None:
    """Brute force: the least end of any match, and the least start among those that end there."""
    for end in range(1, len(text) + 1):
        starts = [start for start in range(end) if re.fullmatch(pattern, text[start:end])]
        if starts:
            return min(starts), end
    return None


@pytest.mark.parametrize("pattern", PATTERNS)
@given(pieces=st.lists(st.text("abcé\n", max_size=4), max_size=8))
def test_equals_brute_force_in_every_split(pattern: str, pieces: list[str]) -> None:
    matcher, shown, matched = RegexStopMatcher(pattern), "", None
    for piece in pieces:
        match = matcher.push(piece)
        shown += match.text
        if match.matched is not None:
            matched = match.matched
            break
    else:
        shown += matcher.flush()
    text = "".join(pieces)
    wanted = _first_end(pattern, text)
    assert shown == (text if wanted is None else text[: wanted[0]])
    assert matched == (None if wanted is None else text[wanted[0] : wanted[1]])


def test_stop_strings_count_too() -> None:
    assert RegexStopMatcher(r"x\d", ["stop"]).push("a stop x1") == ("a ", "stop", " x1")


def test_nothing_is_held_that_cannot_match() -> None:
    matcher = RegexStopMatcher(r"ab+c")
    assert matcher.push("xxab").text == "xx"
    assert matcher.push("d").text == "abd"


def test_a_pattern_that_makes_backtracking_engines_hang_takes_no_time() -> None:
    start = time.thread_time()
    matcher = RegexStopMatcher(r"(a+)+b")
    assert matcher.push("a" * 5000).text == ""
    assert matcher.push("c").text == "a" * 5000 + "c"
    assert time.thread_time() - start < 5


@pytest.mark.parametrize(
    ("pattern", "error"), [("(x", ConstraintInvalid), ("a*", ConstraintInvalid), (r"(a)\1", RequestRefused)]
)
def test_bad_patterns_are_refused(pattern: str, error: type) -> None:
    with pytest.raises(error):
        RegexStopMatcher(pattern)


def test_the_time_limit_is_one_for_each_step_not_for_the_whole_answer() -> None:
    matcher = RegexStopMatcher(r"\d{3}-\d{3}x")
    start = time.thread_time()
    while time.thread_time() - start < 1.7:  # longer than a constraint may take to compile
        assert matcher.push("ab123-12").matched is None
        matcher.push("y")
    assert matcher.push("a123-456x").matched == "123-456x"
