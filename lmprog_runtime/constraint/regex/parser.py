"""Parses patterns: the syntax of Python's `re` for str, or that of ECMAScript as JSON Schema uses it.

No recursion: groups are frames on a stack of our own, so nesting cannot overflow anything. Plain groups leave no trace
in the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from lmprog_runtime.constraint.regex import unicode_sets
from lmprog_runtime.constraint.regex.classes import parse_class
from lmprog_runtime.constraint.regex.errors import malformed, too_large, unsupported
from lmprog_runtime.constraint.regex.scanner import Flags, Scanner
from lmprog_runtime.constraint.regex.syntax import (
    Anchor,
    AnchorKind,
    Chars,
    Choice,
    Look,
    Node,
    Ranges,
    Repeat,
    Sequence,
)

MAX_HEIGHT = 200
"""Choices, sequences, repetitions and look-arounds nested in each other."""

MAX_COUNT = 2**30
MOST_REMEMBERED = 1_000
"""Characters of a pattern whose tree is kept."""

_FLAG_NAMES = {"i": "ignore_case", "m": "multiline", "s": "dot_all", "x": "verbose", "a": "ascii_only"}
_BLANK = " \t\n\r\v\f"


@dataclass
class _Frame:
    """An open group (or the whole pattern)."""

    position: int  # of its parenthesis
    flags: Flags  # to go back to when it closes
    look: tuple[bool, bool] | None = None  # (is ahead, is negative)
    items: list[Node] = field(default_factory=list)
    branches: list[Node] = field(default_factory=list)

    def branch(self) -> Node:
        flat: list[Node] = []
        for item in self.items:
            flat.extend(item.items if isinstance(item, Sequence) else (item,))
        return flat[0] if len(flat) == 1 else Sequence(tuple(flat))

    def close(self) -> Node:
        if not self.branches:
            return self.branch()
        return Choice((*self.branches, self.branch()))


def parse(pattern: str, *, ecma: bool = False) -> Node:
    """The tree of a pattern. ConstraintInvalid, ConstraintUnsupported and ConstraintTooLarge name the construct and its
    position."""
    if len(pattern) > MOST_REMEMBERED:
        return _Parser(pattern, ecma).parse()
    return _parse_short(pattern, ecma)


@lru_cache(maxsize=1_000)
def _parse_short(pattern: str, ecma: bool) -> Node:
    """Schemas repeat their patterns, and requests repeat their schemas; a tree is never changed."""
    return _Parser(pattern, ecma).parse()


class _Parser:
    def __init__(self, pattern: str, ecma: bool) -> None:
        self.scanner = Scanner(pattern, ecma)
        self.pattern, self.ecma = pattern, ecma
        self.flags = Flags()
        self.names: set[str] = set()
        self.frames = [_Frame(0, self.flags)]

    def parse(self) -> Node:
        while not self.scanner.is_at_end:
            self._take_item()
        if len(self.frames) > 1:
            malformed(self.pattern, self.frames[-1].position, "A parenthesis that is not closed")
        tree = self.frames[0].close()
        self._check_height(tree)
        return tree

    # -- items ------------------------------------------------------------------------------------------------------

    def _take_item(self) -> None:
        start = self.scanner.position
        character = self.scanner.take()
        if self.flags.verbose and character in _BLANK:
            return
        if self.flags.verbose and character == "#":
            self._skip_comment()
        elif character == "(":
            self._open_group(start)
        elif character == ")":
            self._close_group(start)
        elif character == "|":
            frame = self.frames[-1]
            frame.branches.append(frame.branch())
            frame.items = []
        elif (bounds := self._quantifier(character, start)) is not None:
            self._apply_quantifier(bounds, start)
        else:
            self.frames[-1].items.append(self._atom(character, start))

    def _skip_comment(self) -> None:
        end = self.pattern.find("\n", self.scanner.position)
        self.scanner.position = len(self.pattern) if end < 0 else end + 1

    def _atom(self, character: str, start: int) -> Node:
        if character == ".":
            newlines = unicode_sets.ECMA_NEWLINES if self.ecma else unicode_sets.NEWLINE
            return Chars(unicode_sets.EVERYTHING if self.flags.dot_all else unicode_sets.invert(newlines))
        if character == "[":
            return Chars(parse_class(self.scanner, self.flags, start))
        if character == "\\":
            return self._escape(start)
        if character in "^$":
            return self._line_anchor(character, start)
        return Chars(self._cased(((ord(character), ord(character)),)))

    def _cased(self, ranges: Ranges) -> Ranges:
        if not self.flags.ignore_case:
            return ranges
        return unicode_sets.ignoring_case(ranges, self.flags.ascii_only)

    def _line_anchor(self, character: str, start: int) -> Node:
        if self.flags.multiline:
            return self._anchor("line_start" if character == "^" else "line_end", start)
        if character == "^":
            return self._anchor("start", start)
        return self._anchor("end" if self.ecma else "end_or_newline", start)

    def _anchor(self, kind: AnchorKind, start: int) -> Anchor:
        return Anchor(kind, unicode_sets.word(self.ecma or self.flags.ascii_only) if "word" in kind else (), start)

    def _escape(self, start: int) -> Node:
        letter = self.scanner.peek()
        if letter in ("b", "B"):
            self.scanner.take()
            return self._anchor("word" if letter == "b" else "not_word", start)
        if letter in ("A", "Z") and not self.ecma:
            self.scanner.take()
            return self._anchor("start" if letter == "A" else "end", start)
        if letter and letter in "123456789" and not self._is_long_octal():
            unsupported(self.pattern, start, f"The back-reference \\{letter}")
        escape = self.scanner.take_escape(self.flags, in_class=False)
        return Chars(self._cased(escape.ranges))

    def _is_long_octal(self) -> bool:
        digits = self.pattern[self.scanner.position : self.scanner.position + 3]
        return not self.ecma and len(digits) == 3 and not set(digits) - set("01234567")

    # -- quantifiers ------------------------------------------------------------------------------------------------

    def _quantifier(self, character: str, start: int) -> tuple[int, int | None] | None:
        """The bounds, when this is a quantifier; a brace that is none stands for itself."""
        if character == "*":
            return 0, None
        if character == "+":
            return 1, None
        if character == "?":
            return 0, 1
        return self._braces(start) if character == "{" else None

    def _braces(self, start: int) -> tuple[int, int | None] | None:
        low_text = self.scanner.take_digits(10, "0123456789")
        has_comma = self.scanner.skip(",")
        high_text = self.scanner.take_digits(10, "0123456789") if has_comma else low_text
        if not self.scanner.skip("}") or not (low_text or has_comma) or (self.ecma and not (low_text or high_text)):
            self.scanner.position = start + 1
            return None
        if self.ecma and not low_text:
            unsupported(self.pattern, start, "{,n}, which dialects read in different ways,", "write {0,n}")
        low, high = int(low_text or 0), int(high_text) if high_text else None
        if max(low, high or 0) > MAX_COUNT:
            too_large(self.pattern, start, "A repetition count")
        if high is not None and high < low:
            malformed(self.pattern, start, f"A repetition from {low} to {high}")
        return low, high

    def _apply_quantifier(self, bounds: tuple[int, int | None], start: int) -> None:
        frame = self.frames[-1]
        if not frame.items or isinstance(frame.items[-1], Anchor):
            malformed(self.pattern, start, "A quantifier with nothing to repeat")
        if isinstance(frame.items[-1], Repeat):
            malformed(self.pattern, start, "A quantifier after a quantifier")
        if self.scanner.skip("+"):
            unsupported(self.pattern, start, "A possessive quantifier", "use the plain one")
        self.scanner.skip("?")  # laziness does not change the language
        frame.items[-1] = Repeat(frame.items[-1], *bounds)

    def _check_height(self, tree: Node) -> None:
        """What is done with the tree later recurses, so its height is bounded here."""
        level = [tree]
        for _ in range(MAX_HEIGHT):
            level = [child for node in level for child in _children(node)]
        if level:
            too_large(self.pattern, 0, f"More than {MAX_HEIGHT} operators nested in each other")

    # -- groups -----------------------------------------------------------------------------------------------------

    def _open_group(self, start: int) -> None:
        frame = _Frame(start, self.flags)
        if self.scanner.skip("?") and not self._open_extension(frame, start):
            return
        self.frames.append(frame)

    def _open_extension(self, frame: _Frame, start: int) -> bool:
        """What follows `(?`. False when it opens no group."""
        skip = self.scanner.skip
        if skip("#"):
            self.scanner.take_until(")", "A comment", start)
            return False
        if skip(":"):
            return True
        for text, look in (("=", (True, False)), ("!", (True, True)), ("<=", (False, False)), ("<!", (False, True))):
            if skip(text):
                frame.look = look
                return True
        if skip("P<") or (self.ecma and skip("<")):
            self._name_group(start)
            return True
        for text, what in (("P=", "A back-reference"), ("(", "A conditional group"), (">", "An atomic group")):
            if skip(text):
                unsupported(self.pattern, start, what)
        return self._take_flags(start)

    def _name_group(self, start: int) -> None:
        name = self.scanner.take_until(">", "A group name", start)
        if not name.replace("$", "_").isidentifier() or name in self.names:
            malformed(self.pattern, start, f"{name!r}, which is no new name for a group,")
        self.names.add(name)

    def _take_flags(self, start: int) -> bool:
        """(?i), at the start, for all that follows; (?i-s: ...) for a group."""
        on = self._flag_letters(start)
        off = self._flag_letters(start) if self.scanner.skip("-") else Flags()
        added = {name: True for name, is_on in zip(Flags._fields, on, strict=True) if is_on}
        removed = {name: False for name, is_on in zip(Flags._fields, off, strict=True) if is_on}
        if added.keys() & removed.keys() or "ascii_only" in removed:
            malformed(self.pattern, start, "A flag turned both on and off, or one that cannot be turned off,")
        self.flags = self.flags._replace(**added, **removed)
        if self.scanner.skip(":"):
            return True
        if not self.scanner.skip(")") or removed or not added:
            malformed(self.pattern, start, "An unknown group")
        if len(self.frames) > 1 or self.frames[0].items or self.frames[0].branches:
            malformed(self.pattern, start, "Flags for the whole pattern that do not stand at its start")
        return False

    def _flag_letters(self, start: int) -> Flags:
        found: dict[str, bool] = {}
        while self.scanner.peek().isalpha():
            letter = self.scanner.take()
            if letter == "u" and not self.ecma and not self.flags.ascii_only:
                continue  # the default
            if letter not in _FLAG_NAMES or (self.ecma and letter not in "ims"):
                malformed(self.pattern, start, f"The unknown flag {letter!r}")
            found[_FLAG_NAMES[letter]] = True
        return Flags(**found)

    def _close_group(self, start: int) -> None:
        if len(self.frames) == 1:
            malformed(self.pattern, start, "A closing parenthesis that closes nothing")
        frame = self.frames.pop()
        self.flags = frame.flags
        node = frame.close()
        if frame.look is not None:
            node = Look(node, *frame.look, frame.position)
        elif isinstance(node, (Repeat, Anchor)):
            node = Sequence((node,))  # (a*)* is no quantifier after a quantifier
        self.frames[-1].items.append(node)


def _children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Sequence):
        return node.items
    if isinstance(node, Choice):
        return node.branches
    return (node.item,) if isinstance(node, (Repeat, Look)) else ()
