"""Goals: what a value has to satisfy, as a conjunction of schemas and negated schemas.

A goal is a tuple of literals in the order of their first mention, which gives the order in which object members are
written. `ANYTHING` is the empty conjunction, `NEVER` the one that no value satisfies. Goals are what the compiler
memoises, so that recursive schemas, and recursive products of schemas, come back to a goal already seen.
"""

from __future__ import annotations

from typing import NamedTuple


class Literal(NamedTuple):
    node: int  # a schema together with its dynamic scope, as the expander numbers them
    holds: bool


Goal = tuple[Literal, ...]

FALSE_NODE = 0
"""The node of the schema `false`."""

ANYTHING: Goal = ()
NEVER: Goal = (Literal(FALSE_NODE, True),)


def both(first: Goal, second: Goal) -> Goal:
    """The conjunction of two goals."""
    if not second or first == second:
        return first
    if not first:
        return second
    if first == NEVER or second == NEVER:
        return NEVER
    literals = dict.fromkeys(first + second)
    if any(Literal(literal.node, not literal.holds) in literals for literal in second):
        return NEVER
    return tuple(literals)
