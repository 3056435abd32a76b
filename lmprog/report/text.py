"""Text for one line of a terminal: harmless, and as wide as it says."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from lmprog.report.layout import Piece, merged

_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
_HARMFUL = ("Cc", "Cf", "Cs", "Zl", "Zp")  # what moves the cursor, or turns the direction of what follows


def one_line(text: str) -> str:
    """Control characters as escapes: output of a model must not steer the terminal."""
    return "".join(_NAMED.get(c) or (_escaped(c) if unicodedata.category(c) in _HARMFUL else c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def width(text: str) -> int:
    """Columns of a terminal. Source: Unicode Standard Annex 11."""
    return sum(map(_width_of, text)) if not text.isascii() else len(text)


def _width_of(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Me":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(pieces: Sequence[Piece], room: int) -> tuple[Piece, ...]:
    """The pieces on one line of at most `room` columns."""
    return cut_middle([Piece(origin, one_line(text)) for origin, text in pieces], room, " ... ")


def cut_middle(pieces: Sequence[Piece], room: int, mark: str) -> tuple[Piece, ...]:
    """The pieces in at most `room` columns; the middle of what is too long is left out, and `mark` stands there."""
    if sum(width(text) for _, text in pieces) <= room:
        return merged(pieces)
    before = max(0, (room - len(mark)) * 2 // 3)
    head = _taken(pieces, before)
    tail = _taken([_backwards(piece) for piece in reversed(pieces)], max(0, room - len(mark) - before))
    return (*merged(head), Piece("prompt", cut(mark, room)), *merged(map(_backwards, reversed(tail))))


def _backwards(piece: Piece) -> Piece:
    return piece._replace(text=piece.text[::-1])


def _taken(pieces: Iterable[Piece], room: int) -> list[Piece]:
    taken = []
    for origin, text in pieces:
        part = cut(text, room)
        taken.append(Piece(origin, part))
        if len(part) < len(text):
            break
        room -= width(part)
    return taken


def cut(text: str, room: int) -> str:
    """The longest beginning of at most `room` columns."""
    if text.isascii():
        return text[: max(0, room)]
    for index, character in enumerate(text):
        room -= _width_of(character)
        if room < 0:
            return text[:index]
    return text
