"""What can be known of a JSON value while its text is still being written."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, NamedTuple

from lmprog.errors import InvalidOutput
from lmprog.schema.reading import parse, plain

_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:
        (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<open_text>"(?:[^"\\]|\\.)*\\?\Z)
      | (?P<mark>[{}\[\]:,])
      | (?P<scalar>[^ \t\n\r"{}\[\]:,]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_CUT_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\Z")  # the first half of a surrogate pair
_CUT_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*|(?:\.\d+)?[eE][+-]?\d*)?)?", re.ASCII)
_WORDS = ("true", "false", "null")
_PAIRS = {"{": "}", "[": "]"}


def partial_json(text: str) -> Any:
    """The value of a JSON text that may have been cut anywhere: what is certain so far, and texts as far as they go.

    Later cuts only add to earlier ones: objects and lists grow, and the last text in them. A number, true, false or
    null inside them is left out until something follows it; so is a name without its value. None while
    nothing is known.
    Raises InvalidOutput when the text is not the beginning of JSON.
    """
    try:
        return plain(parse(text))
    except InvalidOutput:
        known = _Scanner(text).known()
        return None if known is None else plain(parse(known))


class _Expects(Enum):
    VALUE = "a value"
    FIRST_ITEM = "a value or ']'"
    FIRST_NAME = "a name or '}'"
    NAME = "a name"
    COLON = "':'"
    MORE = "',' or the end"
    NOTHING = "the end"


class _Cut(NamedTuple):
    """`text[:end] + tail` is JSON."""

    end: int
    tail: str


class _Scanner:
    """Follows the syntax, and remembers the last place where the text can be closed without changing what it says."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._expects = _Expects.VALUE
        self._closers = ""  # of the brackets that are open, innermost first
        self._cut: _Cut | None = None

    def known(self) -> str | None:
        position = 0
        while (match := _TOKEN.match(self._text, position)) is not None:
            self._take(str(match.lastgroup), match)
            position = match.end()
        return None if self._cut is None else self._text[: self._cut.end] + self._cut.tail

    def _take(self, kind: str, match: re.Match[str]) -> None:
        token, start = match[kind], match.start(kind)
        if kind == "mark" and token not in "{[":
            self._take_mark(token, start)
        elif kind == "mark":
            self._check(start, _Expects.VALUE, _Expects.FIRST_ITEM)
            self._closers = _PAIRS[token] + self._closers
            self._keep(start + 1)
            self._expects = _Expects.FIRST_NAME if token == "{" else _Expects.FIRST_ITEM
        elif kind != "scalar" and self._expects in (_Expects.NAME, _Expects.FIRST_NAME):
            self._expects = _Expects.COLON
        else:
            self._check(start, _Expects.VALUE, _Expects.FIRST_ITEM)
            self._take_value(kind, token, start)
            self._end_value()

    def _take_value(self, kind: str, token: str, start: int) -> None:
        if kind == "open_text":
            self._keep(start, _CUT_PAIR.sub(r"\1", _CUT_ESCAPE.sub(r"\1", token)) + '"')
        elif kind == "text" or start + len(token) < len(self._text):
            self._keep(start + len(token))
        elif not _CUT_NUMBER.fullmatch(token) and not any(word.startswith(token) for word in _WORDS):
            raise self._error(start)

    def _take_mark(self, mark: str, start: int) -> None:
        if mark == ":":
            self._check(start, _Expects.COLON)
            self._expects = _Expects.VALUE
        elif mark == ",":
            self._check(start, _Expects.MORE)
            self._expects = _Expects.NAME if self._closers[0] == "}" else _Expects.VALUE
        else:
            self._check(start, _Expects.MORE, _Expects.FIRST_NAME if mark == "}" else _Expects.FIRST_ITEM)
            if self._closers[0] != mark:
                raise self._error(start)
            self._closers = self._closers[1:]
            self._keep(start + 1)
            self._end_value()

    def _end_value(self) -> None:
        self._expects = _Expects.MORE if self._closers else _Expects.NOTHING

    def _keep(self, end: int, tail: str = "") -> None:
        self._cut = _Cut(end, tail + self._closers)

    def _check(self, position: int, *allowed: _Expects) -> None:
        if self._expects not in allowed:
            raise self._error(position)

    def _error(self, position: int) -> InvalidOutput:
        found = self._text[position : position + 20]
        return InvalidOutput(
            f"The output is not JSON: {self._expects.value} must come at character {position}, not {found!r}."
        )
