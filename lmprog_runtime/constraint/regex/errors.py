"""Refusals of a pattern: each names the construct and where it stands."""

from __future__ import annotations

from typing import NoReturn

from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported

_SHOWN = 60


def _where(pattern: str, position: int) -> str:
    shown = pattern if len(pattern) <= _SHOWN else pattern[:_SHOWN] + "..."
    return f"at position {position} of the regex {shown!r}"


def malformed(pattern: str, position: int, what: str) -> NoReturn:
    raise ConstraintInvalid(f"{what} {_where(pattern, position)}; correct the pattern.")


def unsupported(pattern: str, position: int, what: str, instead: str = "write the pattern without it") -> NoReturn:
    raise ConstraintUnsupported(f"{what} {_where(pattern, position)} cannot be enforced by an automaton; {instead}.")


def too_large(pattern: str, position: int, what: str) -> NoReturn:
    raise ConstraintTooLarge(f"{what} {_where(pattern, position)}; make the pattern smaller.")
