"""Stop strings in a text that is there already, by the one rule that all backends keep."""

from __future__ import annotations

from collections.abc import Iterable


def first_stop(text: str, stops: Iterable[str]) -> tuple[int, str] | None:
    """(position, stop) of the one that begins first, the longest of those; None where the text has none."""
    found = [(position, stop) for stop in stops if (position := text.find(stop)) >= 0]
    return min(found, key=lambda each: (each[0], -len(each[1])), default=None)
