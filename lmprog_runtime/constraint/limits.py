"""What a constraint may cost. Checked inside the compiler and the walks, so that work really stops at a limit."""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge


class Limits(NamedTuple):
    """Costs of one constraint. A constraint that passes one of them is refused with ConstraintTooLarge."""

    nodes: int = 2_000_000  # expressions, which are also the automaton's states
    arena_bytes: int = 512 * 2**20
    compile_seconds: float = 1.5  # processor time of building and checking, before the first token
    walk_seconds: float = 1.0  # processor time of one mask, one step
    search_states: int = 20_000  # states looked at to decide whether an intersection is empty
    width: int = 20_000  # alternatives of one state


DEFAULT_LIMITS = Limits()

MAX_NESTING = 150
"""Operators nested in each other before a byte is read. Bounds the recursion of the derivative in both cores."""

# Codes that cross the C boundary; the names are those in messages.
STATES, BYTES, TIME, NESTING, WIDTH, LEFT_RECURSION, UNDEFINED = -2, -3, -4, -5, -6, -7, -8

_MESSAGES = {
    STATES: "needs more than {limits.nodes} states",
    BYTES: "needs more than {mebibytes} MiB",
    TIME: "passes its time limit ({limits.compile_seconds} s to compile, {limits.walk_seconds} s for a mask)",
    NESTING: "nests more than {nesting} operators",
    WIDTH: "reaches a state with more than {limits.width} alternatives",
}


class LimitReached(Exception):
    """Raised inside the pure Python automaton with one of the codes above."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def refuse(code: int, limits: Limits) -> NoReturn:
    """Raise the public error for a code."""
    if code == LEFT_RECURSION:
        raise ConstraintInvalid(
            "A rule refers to itself before it reads a character; put something before the reference."
        )
    if code == UNDEFINED:
        raise ConstraintInvalid("The constraint refers to a rule that is not defined; define it.")
    what = _MESSAGES[code].format(limits=limits, mebibytes=limits.arena_bytes >> 20, nesting=MAX_NESTING)
    raise ConstraintTooLarge(f"The constraint {what}; make it smaller.")
