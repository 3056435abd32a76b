"""Parses a grammar text. Errors name the line."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple, NoReturn

from lmprog_runtime.constraint.grammar_text.syntax import (
    Choice,
    Grammar,
    Item,
    Literal,
    Name,
    Pattern,
    Repeated,
    Span,
)
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge

MAX_NESTING = 100
MAX_COUNT = 2**20

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|(?://|\#)[^\n]*)
    | (?P<newline>\n)
    | (?P<string>"(?:[^"\\\n]|\\.)*"i?)
    | (?P<regex>/(?:[^/\\\n]|\\.)+/[imsx]*)
    | (?P<define>::=|:)
    | (?P<ignore>%ignore\b)
    | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)
    | (?P<count>~[ ]*\d+(?:[ ]*\.\.[ ]*\d+)?)
    | (?P<dots>\.\.)
    | (?P<sign>[|()\[\]?*+])""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(source: str) -> Grammar:
    """ConstraintInvalid with the line where the text is malformed."""
    return _Parser(_tokens(source)).parse()


def _malformed(line: int, what: str) -> NoReturn:
    raise ConstraintInvalid(f"Line {line} of the grammar: {what}; correct it.")


def _tokens(source: str) -> list[_Token]:
    tokens, position, line = [], 0, 1
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            _malformed(line, f"{source[position : position + 10]!r} is not understood")
        kind = str(match.lastgroup)
        if kind == "newline":
            line += 1
        elif kind != "blank":
            tokens.append(_Token(kind, match.group(), line))
        position = match.end()
    tokens.append(_Token("end", "the end", line))
    return tokens


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens, self.at = tokens, 0
        self.grammar = Grammar()

    @property
    def token(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def parse(self) -> Grammar:
        while self.token.kind != "end":
            if self.token.kind == "ignore":
                self._ignore()
            else:
                self._rule()
        if self.grammar.start not in self.grammar.rules:
            raise ConstraintInvalid("The grammar has no rule named start; add one.")
        return self.grammar

    def _ignore(self) -> None:
        line = self.take().line
        name = self.take()
        if name.kind != "name" or not name.text.isupper():
            _malformed(line, "%ignore wants the name of a terminal, in capitals")
        self.grammar.ignored.append(Name(name.text, line))

    def _rule(self) -> None:
        name = self.take()
        if name.kind != "name" or self.take().kind != "define":
            _malformed(name.line, f"a rule such as 'name: ...' should begin where {name.text!r} stands")
        if name.text in self.grammar.rules:
            _malformed(name.line, f"{name.text} is defined twice")
        self.grammar.lines[name.text] = name.line
        self.grammar.rules[name.text] = self._choice(0)

    def _choice(self, depth: int) -> Choice:
        if depth > MAX_NESTING:
            raise ConstraintTooLarge(f"Line {self.token.line} of the grammar nests more than {MAX_NESTING} groups.")
        branches = [self._sequence(depth)]
        while self.token.text == "|":
            self.take()
            branches.append(self._sequence(depth))
        return Choice(tuple(branches))

    def _sequence(self, depth: int) -> tuple[Item, ...]:
        items = []
        while self._begins_item():
            items.append(self._repeated(self._item(depth)))
        return tuple(items)

    def _begins_item(self) -> bool:
        if self.token.kind == "name":
            return self.tokens[self.at + 1].kind != "define"
        return self.token.kind in ("string", "regex") or self.token.text in ("(", "[")

    def _item(self, depth: int) -> Item:
        token = self.take()
        if token.kind == "string":
            return self._literal(token)
        if token.kind == "regex":
            source, _, flags = token.text[1:].rpartition("/")
            return Pattern(source.replace("\\/", "/"), flags, token.line)
        if token.kind == "name":
            return Name(token.text, token.line)
        inner = self._choice(depth + 1)
        close = ")" if token.text == "(" else "]"
        if self.take().text != close:
            _malformed(token.line, f"{token.text} without its {close}")
        return inner if close == ")" else Repeated(inner, 0, 1)

    def _literal(self, token: _Token) -> Item:
        text = self._unquoted(token)
        if self.token.kind != "dots":
            return Literal(text, token.text.endswith("i"))
        self.take()
        high = self.take()
        other = self._unquoted(high) if high.kind == "string" else ""
        if len(text) != 1 or len(other) != 1 or other < text:
            _malformed(token.line, 'a range wants two single characters in order, such as "a".."z"')
        return Span(text, other)

    def _unquoted(self, token: _Token) -> str:
        try:
            return str(ast.literal_eval(token.text.removesuffix("i")))
        except (SyntaxError, ValueError):
            _malformed(token.line, f"{token.text} has a malformed escape")

    def _repeated(self, item: Item) -> Item:
        while self.token.text in ("?", "*", "+") or self.token.kind == "count":
            token = self.take()
            if token.kind == "count":
                low, _, high = token.text[1:].replace(" ", "").partition("..")
                bounds = int(low), int(high or low)
            else:
                bounds = {"?": (0, 1), "*": (0, -1), "+": (1, -1)}[token.text]
            if bounds[1] != -1 and (bounds[1] < bounds[0] or bounds[1] > MAX_COUNT):
                _malformed(token.line, f"{token.text} is no count up to {MAX_COUNT}")
            item = Repeated(item, bounds[0], None if bounds[1] == -1 else bounds[1])
        return item
