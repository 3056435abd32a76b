"""What is wrong with a body, in the words of its client: which of pydantic's many errors to tell, and where it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_SHOULD_BE = "Input should be "
_SIZES = ("too_long", "too_short")  # a value of the right kind, else


class Mistake(NamedTuple):
    kind: str  # pydantic's name of it
    path: tuple[str, ...]  # names and indices that lead to it in the body
    reason: str


class _Place(NamedTuple):
    path: tuple[str | int, ...]
    kinds: tuple[str | int, ...]  # as pydantic names them, of the values on the path that may be of several
    union: int | None  # so much of the path leads to the first such value


def first_mistake(body: Any, errors: Sequence[Mapping[str, Any]]) -> Mistake:
    """The first of `errors` (not empty), or where its value may be of several kinds, the one of the likeliest kind.

    That is the kind of which the value goes wrong latest (in `["a", 5]`, which is no text, no list of ids and no list
    of texts, the mistake is the 5) and in the fewest ways.
    """
    places = [_place(body, error) for error in errors]
    union, path = places[0].union, places[0].path[: places[0].union]
    rivals = [n for n, place in enumerate(places) if place.union == union and place.path[:union] == path]
    ways = Counter(place.kinds for place in places)
    ranks = {
        n: (errors[n]["type"] in _SIZES, _indices(places[n]), -ways[places[n].kinds], len(places[n].path))
        for n in ([0] if union is None else rivals)
    }
    best = max(ranks, key=lambda n: ranks[n])
    alike = [n for n in ranks if ranks[n] == ranks[best] and places[n].path == places[best].path]
    reason = _joined([str(errors[n]["msg"]) for n in alike])
    return Mistake(errors[best]["type"], tuple(map(str, places[best].path)), reason)


def _place(body: Any, error: Mapping[str, Any]) -> _Place:
    """Where an error is; what pydantic names besides are the kinds of a union, or the key of an object."""
    path: list[str | int] = []
    kinds: list[str | int] = []
    union = None
    for part in error["loc"][1:]:
        if _has(body, part):
            body = body[part]
            path.append(part)
        elif error["type"] == "missing" and part is error["loc"][-1]:
            path.append(part)
        else:
            union = len(path) if union is None else union
            kinds.append(part)
    return _Place(tuple(path), tuple(kinds), union)


def _has(value: Any, part: str | int) -> bool:
    return part in value if isinstance(value, dict) else isinstance(value, list) and isinstance(part, int)


def _indices(place: _Place) -> tuple[int, ...]:
    return tuple(part for part in place.path if isinstance(part, int))


def _joined(reasons: Sequence[str]) -> str:
    if all(reason.startswith(_SHOULD_BE) for reason in reasons):
        return _SHOULD_BE + " or ".join(dict.fromkeys(reason.removeprefix(_SHOULD_BE) for reason in reasons))
    return reasons[0].removeprefix("Value error, ").rstrip(".")
