"""The builder that front ends use: regular expressions over bytes, with recursion, as hash-consed ints.

Independent of any vocabulary. One `Expressions` serves one constraint and goes with it. An expression is an int, equal
ints are equal languages, and building the same thing twice gives the same int.

Objects. `members` is the part between the braces of a JSON object: the listed members (each an expression for the
whole of `"key": value`), every one at most once and the required ones for sure, in the order listed or in any; `extra`
members (any number, after the listed ones when the order is fixed, anywhere when it is not); a separator between any
two; `low` to `high` members in all. It is expanded where a generation really goes, so 1,000 optional properties cost
1,000 steps to build, not a million. Whitespace inside the braces and the braces themselves are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from lmprog_runtime.constraint.arena import Arena, new_arena
from lmprog_runtime.constraint.limits import DEFAULT_LIMITS, Limits
from lmprog_runtime.constraint.regex import translate

MAX_CODE_POINT = 0x10FFFF
CodePointRange = tuple[int, int]
"""Inclusive, both ends."""


class Encoding(IntEnum):
    """How a character is written."""

    UTF8 = 0
    JSON_ESCAPED = 1  # inside a JSON string, in every way that JSON knows (raw, \n, \u000a, surrogate pairs)
    JSON_PLAIN = 2  # inside a JSON string, as serialisers write it: escaped only where it has to be


class Expressions:
    """Builds the expressions of one constraint. Errors: ConstraintTooLarge when a limit is reached."""

    EMPTY = 0  # matches nothing
    EPSILON = 1  # matches the empty text

    def __init__(self, limits: Limits = DEFAULT_LIMITS, arena: Arena | None = None) -> None:
        self.arena = new_arena(limits) if arena is None else arena
        self._code_points: dict[tuple[tuple[CodePointRange, ...], int], int] = {}

    # -- bytes and text ---------------------------------------------------------------------------------------------

    def byte_set(self, data: bytes) -> int:
        """One byte out of these."""
        return self.arena.byte_set(data)

    def literal(self, data: bytes) -> int:
        return self.arena.literal(data)

    def words(self, choices: Iterable[bytes]) -> int:
        """One of the byte strings; common beginnings are shared. EMPTY for none."""
        return self.arena.words(list(choices))

    def code_points(self, ranges: Iterable[CodePointRange], encode: Encoding = Encoding.UTF8) -> int:
        """One character out of inclusive code point ranges (any order, may overlap; surrogates are left out)."""
        key = (normalised(ranges), int(encode))
        found = self._code_points.get(key)
        if found is None:
            found = self._code_points[key] = self.arena.code_points(key[0], key[1])
        return found

    def any_character(self, encode: Encoding = Encoding.UTF8) -> int:
        return self.code_points([(0, MAX_CODE_POINT)], encode)

    def text(self, text: str, encode: Encoding = Encoding.UTF8) -> int:
        """This text, in every way that the encoding can write it."""
        if encode is Encoding.UTF8:
            return self.literal(text.encode())
        return self.concat(*(self.code_points([(ord(c), ord(c))], encode) for c in text))

    def texts(self, choices: Iterable[str], encode: Encoding) -> int:
        """One of the texts, in every way that the encoding can write it; common beginnings are shared."""
        if encode is Encoding.UTF8:
            return self.words(choice.encode() for choice in choices)
        return self._shared(sorted(set(choices)), encode)

    def _shared(self, ordered: Sequence[str], encode: Encoding) -> int:
        # Bottom-up over the sorted list: open_levels[d] has the finished branches behind a prefix of length d.
        open_levels: list[list[int]] = [[]]
        for at, text in enumerate(ordered):
            following = ordered[at + 1] if at + 1 < len(ordered) else ""
            open_levels += [[] for _ in range(len(text) + 1 - len(open_levels))]
            open_levels[-1].append(self.EPSILON)
            pairs = enumerate(zip(text, following, strict=False))
            common = next((i for i, (a, b) in pairs if a != b), min(len(text), len(following)))
            while len(open_levels) - 1 > common:
                branch = self.alternate(open_levels.pop())
                character = ord(text[len(open_levels) - 1])
                edge = self.code_points([(character, character)], encode)
                open_levels[-1].append(self.concat(edge, branch))
        return self.alternate(open_levels[0])

    def regex(self, pattern: str, *, search: bool = False, ecma: bool = False, encode: Encoding = Encoding.UTF8) -> int:
        """The texts that a regular expression matches as a whole (`search`: somewhere).

        ecma: the dialect of JSON Schema's `pattern` instead of Python's. Raises ConstraintInvalid,
        ConstraintUnsupported and ConstraintTooLarge, which name the construct and its position.
        """
        return translate(self, pattern, search=search, ecma=ecma, encode=encode)

    # -- operators --------------------------------------------------------------------------------------------------

    def concat(self, *parts: int) -> int:
        return self.arena.concat(parts)

    def alternate(self, members: Iterable[int]) -> int:
        return self.arena.alternate(list(members))

    def intersect(self, *members: int) -> int:
        """What all match. Whether that is nothing is found when asked for (`is_empty`), or when compiling ends."""
        return self.arena.intersect(members)

    def complement(self, x: int) -> int:
        """All byte strings that `x` does not match; intersect it with what the text may be at all."""
        return self.arena.complement(x)

    def repeat(self, x: int, low: int, high: int | None = None) -> int:
        """`low` to `high` times (None: no bound). Kept as a counter, so {0,100000} costs what {0,1} costs."""
        return self.arena.repeat(x, low, -1 if high is None else high)

    def optional(self, x: int) -> int:
        return self.alternate((self.EPSILON, x))

    def lexeme(self, x: int) -> int:
        """The same language, marked as one unit such as a JSON string: which tokens stay inside it is then computed
        once, and shared by all contexts and all constraints of a vocabulary."""
        return self.arena.lexeme(x)

    # -- recursion --------------------------------------------------------------------------------------------------

    def reference(self, nullable: bool = False) -> int:
        """An expression to be defined later. `nullable` must say whether its definition matches the empty text."""
        return self.arena.reference(nullable)

    def define(self, reference: int, x: int) -> None:
        """Give a reference its definition, once. A definition must read a byte before it comes back to itself."""
        if self.is_nullable(x) != self.is_nullable(reference):
            raise ValueError("A reference was declared with the wrong `nullable`; pass what its definition is.")
        self.arena.define(reference, x)

    # -- objects ----------------------------------------------------------------------------------------------------

    def members(
        self,
        pairs: Sequence[tuple[int, bool]],
        *,
        separator: int,
        extra: int = EMPTY,
        low: int = 0,
        high: int | None = None,
        any_order: bool = False,
    ) -> int:
        """An object's members (see the module's docstring). pairs: (expression, is required). No member expression and
        no separator may match the empty text."""
        return self.arena.members(
            [pair for pair, _ in pairs],
            [required for _, required in pairs],
            extra,
            separator,
            low,
            -1 if high is None else high,
            any_order,
        )

    # -- questions --------------------------------------------------------------------------------------------------

    def is_nullable(self, x: int) -> bool:
        """Whether it matches the empty text."""
        return self.arena.is_nullable(x)

    def matches(self, x: int, data: bytes) -> bool:
        """Whether all of `data` is one of its texts. ConstraintInvalid when an undefined reference is reached."""
        return self.arena.is_nullable(self.arena.step(x, data))

    def is_empty(self, x: int) -> bool | None:
        """Whether it matches no text at all; None when that could not be decided within `limits.search_states` states,
        or when it hangs on a reference that has no definition yet."""
        return self.arena.is_empty(x)

    def disjoint(self, x: int, y: int) -> bool | None:
        """Whether no text matches both; None as in `is_empty`."""
        return self.is_empty(self.intersect(x, y))


def normalised(ranges: Iterable[CodePointRange]) -> tuple[CodePointRange, ...]:
    """Sorted, disjoint, not adjacent."""
    merged: list[CodePointRange] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)
