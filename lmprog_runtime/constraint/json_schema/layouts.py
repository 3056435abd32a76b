"""How JSON is laid out: the separators, and the blanks that may stand between tokens.

compact   one line, `, ` and `: `, as Python's json.dumps writes by default
dense     no blanks at all: `,` and `:`
flexible  between any two tokens nothing, a blank, or a line break with up to MAX_INDENT blanks or tabs
other     a regular expression of what may stand between any two tokens; it may match JSON's blanks only
"""

from __future__ import annotations

from typing import NamedTuple

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.errors import ConstraintInvalid

MAX_INDENT = 40

SEPARATORS = {"compact": (", ", ": "), "dense": (",", ":"), "flexible": (", ", ": ")}
"""For each style, the separators with which json.dumps writes text in that style."""

_BLANKS = b" \t\n\r"
FLEXIBLE = rf"(?: |\r?\n[ \t]{{0,{MAX_INDENT}}})?"
"""What "flexible" lets stand between two tokens."""


class Layout(NamedTuple):
    """Expressions of the punctuation, with the blanks around it."""

    gap: int  # after an opening bracket, before a closing one
    comma: int
    colon: int


def layout(style: str, expressions: Expressions) -> Layout:
    """The layout of a style. Raises ConstraintInvalid for an expression that matches more than blanks."""
    if style in ("compact", "dense"):
        comma, colon = SEPARATORS[style]
        return Layout(expressions.EPSILON, expressions.literal(comma.encode()), expressions.literal(colon.encode()))
    gap = _gap(FLEXIBLE if style == "flexible" else style, expressions)
    around = [expressions.concat(gap, expressions.literal(mark), gap) for mark in (b",", b":")]
    return Layout(gap, *around)


def _gap(pattern: str, expressions: Expressions) -> int:
    gap = expressions.regex(pattern)
    blanks = expressions.repeat(expressions.byte_set(_BLANKS), 0)
    if expressions.disjoint(gap, expressions.complement(blanks)) is not True:
        raise ConstraintInvalid(
            f"whitespace is {pattern!r}; give compact, dense, flexible or a regular expression that matches blanks."
        )
    return gap
