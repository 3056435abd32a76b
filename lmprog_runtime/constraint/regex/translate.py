"""From the syntax tree to an expression.

Without look-around a pattern is plain concatenation, choice and repetition. Anchors and look-around are exact too, by
intersection: what stands to the right of a place is intersected with what is looked for ahead, what stands to the left
with what is looked for behind. For the left side, all of it has to be known (or as many characters as the assertion
reads): an assertion that reads to the left from inside a repetition is refused where it would see past the repetition.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from lmprog_runtime.constraint.regex import unicode_sets
from lmprog_runtime.constraint.regex.errors import too_large, unsupported
from lmprog_runtime.constraint.regex.parser import parse
from lmprog_runtime.constraint.regex.syntax import Anchor, Chars, Choice, Look, Node, Ranges, Repeat, Sequence

if TYPE_CHECKING:
    from lmprog_runtime.constraint.expressions import Encoding, Expressions

MAX_UNROLLED = 64
"""Rounds of a repetition with look-around inside; others are counted, not unrolled."""

MAX_SPLITS = 5_000
"""Places visited to resolve look-around; alternatives with look-around inside multiply."""

_WORD_LIST = 8
"""Choices of more literal branches than this share their beginnings."""


class _Left(NamedTuple):
    """What stands before a place."""

    expression: int
    is_whole: bool  # from the start of the text; else only the last characters are known
    least: int  # characters it has at least


def translate(expressions: Expressions, pattern: str, *, search: bool, ecma: bool, encode: Encoding) -> int:
    """The texts that `pattern` matches as a whole (`search`: somewhere)."""
    tree = parse(pattern, ecma=ecma)
    translator = _Translator(expressions, pattern, ecma, encode)
    if search:
        anything = Repeat(Chars(unicode_sets.EVERYTHING), 0, None)
        tree = Sequence((anything, tree, anything))
    return translator.resolve(_Left(expressions.EPSILON, True, 0), [tree], expressions.EPSILON)


class _Translator:
    def __init__(self, expressions: Expressions, pattern: str, ecma: bool, encode: Encoding) -> None:
        self.e, self.pattern, self.ecma, self.encode = expressions, pattern, ecma, encode
        self.newline = unicode_sets.ECMA_NEWLINES if ecma else unicode_sets.NEWLINE
        self.anything = expressions.repeat(expressions.any_character(encode), 0)
        # Behind what is looked for ahead stands any text at all: what it is intersected with says which. This one goes
        # away in an intersection, the one above does not.
        self.all_else = expressions.complement(expressions.EMPTY)
        self.unknown = _Left(expressions.EPSILON, False, 0)
        self.splits = 0

    # -- without look-around ----------------------------------------------------------------------------------------

    def plain(self, node: Node) -> int:
        if isinstance(node, Chars):
            return self._chars(node.ranges)
        if isinstance(node, Sequence):
            return self.e.concat(*(self.plain(item) for item in node.items))
        if isinstance(node, Choice):
            return self._choice(node)
        assert isinstance(node, Repeat)
        return self.e.repeat(self.plain(node.item), node.low, node.high)

    def _chars(self, ranges: Ranges) -> int:
        return self.e.code_points(ranges, self.encode)

    def _choice(self, node: Choice) -> int:
        words: list[str] = []
        others: list[int] = []
        for branch in node.branches:
            word = _word(branch) if len(node.branches) > _WORD_LIST else None
            if word is None:
                others.append(self.plain(branch))
            else:
                words.append(word)
        return self.e.alternate([*others, self.e.texts(words, self.encode)])

    # -- with look-around -------------------------------------------------------------------------------------------

    def resolve(self, left: _Left, items: list[Node], right: int) -> int:
        """Texts of `left`, then the items, then `right`. Where `left` is not whole, from the end of what is unknown."""
        self.splits += 1
        if self.splits > MAX_SPLITS:
            too_large(self.pattern, 0, "Too many combinations of look-around")
        at = next((i for i, item in enumerate(items) if _has_look(item)), len(items))
        left = self._extended(left, items[:at])
        if at == len(items):
            return self.e.concat(left.expression, right)
        return self._resolve_first(left, items[at], items[at + 1 :], right)

    def _extended(self, left: _Left, items: list[Node]) -> _Left:
        expression = self.e.concat(left.expression, *(self.plain(item) for item in items))
        return _Left(expression, left.is_whole, left.least + sum(_least(item) for item in items))

    def _resolve_first(self, left: _Left, node: Node, rest: list[Node], right: int) -> int:
        if isinstance(node, Sequence):
            return self.resolve(left, [*node.items, *rest], right)
        if isinstance(node, Choice):
            return self.e.alternate(self.resolve(left, [branch, *rest], right) for branch in node.branches)
        if isinstance(node, Repeat):
            return self._repeat(left, node, rest, right)
        if isinstance(node, Anchor):
            return self._anchor(left, node, rest, right)
        assert isinstance(node, Look)
        if node.is_ahead and _starts_with_start(node.item):
            return self._ahead_from_start(left, node, rest, right)
        if node.is_ahead:
            seen = self.resolve(self._beyond(left), [node.item], self.all_else)
            return self._ahead(left, self._signed(seen, node.is_negative), rest, right)
        return self._behind(left, node, rest, right)

    def _beyond(self, left: _Left) -> _Left:
        """What stands before the rest when that is looked at by itself: still the start, where nothing came before."""
        return left if left.is_whole and left.expression == self.e.EPSILON else self.unknown

    def _signed(self, expression: int, is_negative: bool) -> int:
        return self.e.complement(expression) if is_negative else expression

    def _ahead(self, left: _Left, seen: int, rest: list[Node], right: int) -> int:
        following = self.resolve(self._beyond(left), rest, right)
        return self.e.concat(left.expression, self.e.intersect(following, seen))

    def _ahead_from_start(self, left: _Left, node: Look, rest: list[Node], right: int) -> int:
        """(?=^x) is ^(?=x); (?!^x) is that too with (?!x), or any place but the start."""
        items = node.item.items if isinstance(node.item, Sequence) else (node.item,)
        without = replace(node, item=Sequence(items[1:]))
        at_start = self.resolve(left, [items[0], without, *rest], right)
        if not node.is_negative:
            return at_start
        elsewhere = left if left.least > 0 else self._cut(left, self.e.complement(self.e.EPSILON))
        return self.e.alternate([at_start, self.resolve(elsewhere, rest, right)])

    def _behind(self, left: _Left, node: Look, rest: list[Node], right: int) -> int:
        most = _most(node.item)
        if not left.is_whole and (most is None or left.least < most):
            unsupported(self.pattern, node.position, "This look-behind")
        start = _Left(self.anything, True, 0)
        seen = self.resolve(start, [node.item], self.e.EPSILON)
        return self.resolve(self._cut(left, self._signed(seen, node.is_negative)), rest, right)

    def _cut(self, left: _Left, seen: int) -> _Left:
        return left._replace(expression=self.e.intersect(left.expression, seen))

    def _repeat(self, left: _Left, node: Repeat, rest: list[Node], right: int) -> int:
        if max(node.low, node.high or 0) > MAX_UNROLLED:
            too_large(self.pattern, 0, f"A repetition of more than {MAX_UNROLLED} rounds with look-around inside")
        if node.low > 0:
            fewer = Repeat(node.item, node.low - 1, None if node.high is None else node.high - 1)
            return self.resolve(left, [node.item, fewer, *rest], right)
        if node.high == 0:
            return self.resolve(left, rest, right)
        if node.high is None:
            return self.e.concat(left.expression, self._star(node.item, rest, right))
        once = [node.item, Repeat(node.item, 0, node.high - 1), *rest]
        return self.e.alternate([self.resolve(left, rest, right), self.resolve(left, once, right)])

    def _star(self, item: Node, rest: list[Node], right: int) -> int:
        """item* and what follows, as a recursive rule, since an assertion in the item sees what follows."""
        if _least(item) == 0:
            unsupported(self.pattern, 0, "Look-around inside a repetition of what may be empty")
        done = self.resolve(self.unknown, rest, right)
        again = self.e.reference(self.e.is_nullable(done))
        self.e.define(again, self.e.alternate([done, self.resolve(self.unknown, [item], again)]))
        return again

    # -- anchors ----------------------------------------------------------------------------------------------------

    def _anchor(self, left: _Left, node: Anchor, rest: list[Node], right: int) -> int:
        e = self.e
        if node.kind in ("word", "not_word"):
            return self._word_boundary(left, node, rest, right)
        newline = self._chars(self.newline)
        if node.kind == "end":
            return self._ahead(left, e.EPSILON, rest, right)
        if node.kind == "end_or_newline":
            return self._ahead(left, e.optional(newline), rest, right)
        if node.kind == "line_end":
            return self._ahead(left, e.optional(e.concat(newline, self.all_else)), rest, right)
        if node.kind == "line_start":
            self._need(left, node, "^")
            return self.resolve(self._cut(left, e.optional(e.concat(self.anything, newline))), rest, right)
        if left.least > 0:
            return e.EMPTY
        if not left.is_whole:
            unsupported(self.pattern, node.position, "A start anchor behind something of unknown length")
        return self.resolve(self._cut(left, e.EPSILON), rest, right)

    def _need(self, left: _Left, node: Anchor, what: str) -> None:
        if not left.is_whole and left.least == 0:
            unsupported(self.pattern, node.position, f"{what} after something of unknown length")

    def _word_boundary(self, left: _Left, node: Anchor, rest: list[Node], right: int) -> int:
        self._need(left, node, "A word boundary")
        e = self.e
        word = self._chars(node.word)
        ends_in_word = e.concat(self.anything, word)
        starts_with_word = e.concat(word, self.all_else)
        following = self.resolve(self._beyond(left), rest, right)
        sides = []
        for left_is_word in (True, False):
            right_is_word = left_is_word != (node.kind == "word")
            before = e.intersect(left.expression, self._signed(ends_in_word, not left_is_word))
            after = e.intersect(following, self._signed(starts_with_word, not right_is_word))
            if node.kind == "not_word" and not self.ecma and not (left_is_word or right_is_word):
                # Python's \B does not match in an empty text (until 3.14).
                something = e.complement(e.EPSILON)
                sides.append(e.concat(e.intersect(before, something), after))
                after = e.intersect(after, something)
            sides.append(e.concat(before, after))
        return e.alternate(sides)


def _word(node: Node) -> str | None:
    """The text of a branch that is nothing but one text."""
    items = node.items if isinstance(node, Sequence) else (node,)
    characters = []
    for item in items:
        if not isinstance(item, Chars) or len(item.ranges) != 1 or item.ranges[0][0] != item.ranges[0][1]:
            return None
        characters.append(chr(item.ranges[0][0]))
    return "".join(characters)


def _has_look(node: Node) -> bool:
    if isinstance(node, (Look, Anchor)):
        return True
    if isinstance(node, Chars):
        return False
    if isinstance(node, Repeat):
        return _has_look(node.item)
    return any(_has_look(child) for child in (node.items if isinstance(node, Sequence) else node.branches))


def _least(node: Node) -> int:
    """Characters that a node matches at least."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Sequence):
        return sum(_least(item) for item in node.items)
    if isinstance(node, Choice):
        return min(_least(branch) for branch in node.branches)
    return node.low * _least(node.item) if isinstance(node, Repeat) else 0


def _most(node: Node) -> int | None:
    """Characters that a node matches at most; None without bound."""
    if isinstance(node, Chars):
        return 1
    if isinstance(node, (Look, Anchor)):
        return 0
    if isinstance(node, Repeat):
        inner = _most(node.item)
        return None if node.high is None or inner is None else node.high * inner
    parts = [_most(child) for child in (node.items if isinstance(node, Sequence) else node.branches)]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    return sum(known) if isinstance(node, Sequence) else max(known, default=0)


def _starts_with_start(node: Node) -> bool:
    first = node.items[0] if isinstance(node, Sequence) and node.items else node
    return isinstance(first, Anchor) and first.kind == "start"
