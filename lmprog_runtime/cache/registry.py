"""Choosing something by name, with an error that helps."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def named(what: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of that name. ValueError with the nearest known name, or all of them."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
    raise ValueError(f"There is no {what} {name!r}; {guess}")
