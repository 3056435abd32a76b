"""Stop conditions that are a regular expression: found as the text comes, in one pass, without backtracking.

An automaton is started at every character, and equal states keep only the leftmost start, so the work per character is
bounded by the number of states whatever the expression. Syntax: that of constraints (Python's `re`).
"""

from __future__ import annotations

from collections.abc import Sequence

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.errors import ConstraintInvalid
from lmprog_runtime.stops import StopMatch

_EVERY_BYTE = b"\xff" * 32


class RegexStopMatcher:
    """As StopMatcher, for a regular expression and any stop strings. The match that ends first wins, of those the one
    that begins first. Text that could be the beginning of a match is held back."""

    def __init__(self, pattern: str, stops: Sequence[str] = ()) -> None:
        """ConstraintInvalid or ConstraintUnsupported for the pattern, also when it matches the empty text."""
        expressions = Expressions()
        whole = [expressions.regex(pattern), *(expressions.literal(stop.encode()) for stop in stops)]
        self._arena = expressions.arena
        root = expressions.alternate(whole)
        if expressions.is_nullable(root):
            raise ConstraintInvalid(f"stop_regex {pattern!r} matches the empty text: it would end every answer.")
        self._root = self._arena.seal(root, _EVERY_BYTE)  # from here on the time limit is one for each step
        self._held = ""
        self._starts: dict[int, int] = {}  # automaton state: leftmost place in `_held` where it was started

    def push(self, piece: str, *, is_active: bool = True) -> StopMatch:
        if not is_active:
            text, self._held, self._starts = self._held + piece, "", {}
            return StopMatch(text, None, "")
        for offset, character in enumerate(piece):
            self._held += character
            start = self._step(character)
            if start is not None:
                shown, matched = self._held[:start], self._held[start:]
                self._held, self._starts = "", {}
                return StopMatch(shown, matched, piece[offset + 1 :])
        return StopMatch(self._release(), None, "")

    def flush(self) -> str:
        held, self._held, self._starts = self._held, "", {}
        return held

    def _step(self, character: str) -> int | None:
        """Feed the last character of `_held`; the start of a match that it ends."""
        data, here = character.encode(), len(self._held) - 1
        following: dict[int, int] = {}
        ended: list[int] = []
        for state, start in [*self._starts.items(), (self._root, here)]:
            after = self._arena.step(state, data)
            if after != Expressions.EMPTY:
                following[after] = min(start, following.get(after, start))
                if self._arena.is_nullable(after):
                    ended.append(start)
        self._starts = following
        return min(ended, default=None)

    def _release(self) -> str:
        """Text before every possible match."""
        count = min(self._starts.values(), default=len(self._held))
        shown, self._held = self._held[:count], self._held[count:]
        self._starts = {state: start - count for state, start in self._starts.items()}
        return shown
