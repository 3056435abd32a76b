"""Stop strings: the leftmost match in the generated text wins, and no part of a stop is ever shown.

Holds back only what could still become a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    text: str  # may be shown now
    matched: str | None  # the stop string that ended the output
    rest: str  # what came after it


class StopMatcher:
    """Feeds on pieces of text; gives back what can be shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: str, *, is_active: bool = True) -> StopMatch:
        """`is_active=False` (before min_tokens): a match does not end the output and its text is kept."""
        text = self._held + piece
        if not is_active or not self._stops:
            self._held = ""
            return StopMatch(text, None, "")
        found = self._first_match(text)
        if found is not None:
            self._held = ""
            at, stop = found
            return StopMatch(text[:at], stop, text[at + len(stop) :])
        keep = self._longest_possible_start(text)
        self._held = text[len(text) - keep :]
        return StopMatch(text[: len(text) - keep], None, "")

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Earliest start wins; of stops that start together, the longest."""
        hits = [(at, -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not hits:
            return None
        at, _, stop = min(hits)
        return at, stop

    def _longest_possible_start(self, text: str) -> int:
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
