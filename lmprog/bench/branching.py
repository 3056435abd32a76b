"""Forks that can be turned off, to see what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmprog.state import State


def in_branches(s: State, names: Sequence[str], parallel: bool, body: Callable[[str, State], None]) -> list[State]:
    """Run `body` in a branch per name; the branches, in order. Not parallel: each ends before the next begins."""
    if parallel:
        with s.fork(names) as branches:
            for name, branch in zip(names, branches, strict=True):
                body(name, branch)
        return list(branches)
    return [_alone(s, name, body) for name in names]


def _alone(s: State, name: str, body: Callable[[str, State], None]) -> State:
    with s.fork([name]) as branches:
        body(name, branches[0])
    branches[0].sync()
    return branches[0]


def numbered(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]
