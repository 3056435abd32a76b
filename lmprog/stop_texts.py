"""Stop strings in a text that is there already, by the one rule that all backends keep."""

from __future__ import annotations

from collections.abc import Iterable

Found = tuple[int, str]  # position, stop


def first_stop(text: str, stops: Iterable[str], beyond: int = 0) -> Found | None:
    """The stop that begins first, the longest of those; None where the text has none. It ends after `beyond`."""
    places = ((text.find(stop, max(0, beyond + 1 - len(stop))), stop) for stop in stops)
    return first_of(place for place in places if place[0] >= 0)


def first_of(found: Iterable[Found]) -> Found | None:
    return min(found, key=lambda each: (each[0], -len(each[1])), default=None)
