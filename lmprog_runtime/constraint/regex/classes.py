"""Parses character classes: [...]."""

from __future__ import annotations

from lmprog_runtime.constraint.regex import unicode_sets
from lmprog_runtime.constraint.regex.errors import malformed
from lmprog_runtime.constraint.regex.scanner import Escape, Flags, Scanner
from lmprog_runtime.constraint.regex.syntax import Ranges


def parse_class(scanner: Scanner, flags: Flags, start: int) -> Ranges:
    """After the opening bracket, to behind the closing one."""
    is_negated = scanner.skip("^")
    members: list[Ranges] = []
    is_first = True
    while scanner.ecma or is_first or scanner.peek() != "]":
        if scanner.is_at_end:
            malformed(scanner.pattern, start, "A character class that is not closed")
        if scanner.ecma and scanner.peek() == "]":
            break
        members += _member(scanner, flags, start)
        is_first = False
    scanner.take()
    ranges = unicode_sets.union(*members)
    if flags.ignore_case:
        ranges = unicode_sets.ignoring_case(ranges, flags.ascii_only)
    return unicode_sets.invert(ranges) if is_negated else ranges


def _member(scanner: Scanner, flags: Flags, start: int) -> list[Ranges]:
    """One character, one set, or a range."""
    position = scanner.position
    low = _single(scanner, flags, start)
    if not scanner.pattern.startswith("-", scanner.position) or scanner.pattern[scanner.position + 1 :][:1] in (
        "",
        "]",
    ):
        return [low.ranges]
    scanner.take()
    high = _single(scanner, flags, start)
    if not (low.is_character and high.is_character):
        if scanner.ecma:  # [\w-.]: the hyphen stands for itself
            return [low.ranges, ((0x2D, 0x2D),), high.ranges]
        malformed(scanner.pattern, position, "A range with a set at its end")
    if low.ranges[0][0] > high.ranges[0][0]:
        malformed(scanner.pattern, position, "A range from a higher to a lower character")
    return [((low.ranges[0][0], high.ranges[0][0]),)]


def _single(scanner: Scanner, flags: Flags, start: int) -> Escape:
    if scanner.is_at_end:
        malformed(scanner.pattern, start, "A character class that is not closed")
    character = scanner.take()
    if character == "\\":
        return scanner.take_escape(flags, in_class=True)
    return Escape(((ord(character), ord(character)),), is_character=True)
