"""A run as a tree for terminals: what each step read, reused and wrote, and how long it took."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import NamedTuple

from lmprog.record import Record
from lmprog.report.layout import ORIGINS, Entry, Piece, entry_of
from lmprog.report.text import cut, one_line, shorten, width
from lmprog.report.totals import Totals, totals

_COLUMNS = ("prompt", "cached", "sampled", "forced", "ms")
_WIDTH_OF_COLUMN = 8
_WIDEST_LABEL = 32
_NARROWEST = 80
_COLOURS = {
    "prompt": "39",
    "cached": "2",  # dim: nothing was paid for it
    "generated": "32",
    "forced": "36",
    "error": "31",
    "state": "1",
    "step": "34",
    "frame": "2",
}
_LINES = ("├─ ", "└─ ", "│  ", "   ")
_ASCII_LINES = ("|- ", "`- ", "|  ", "   ")


class _Line(NamedTuple):
    frame: str  # the branches of the tree, drawn
    entry: Entry


def render_tree(
    record: Record, *, width: int | None = None, colour: bool | None = None, ascii: bool | None = None
) -> str:
    """The tree of a run.

    width: columns; by default the terminal's. colour: by default on a terminal, unless NO_COLOR is set. ascii: whether
    lines are drawn with ASCII only; by default where stdout is no terminal or cannot write others.
    Numbers of a state count all below it. Dim text came from the cache; inside one text the border is estimated.
    """
    is_terminal = sys.stdout.isatty()
    has_colour = is_terminal and not os.environ.get("NO_COLOR") if colour is None else colour
    lines = _ASCII_LINES if (not is_terminal or not _can_draw() if ascii is None else ascii) else _LINES
    columns = max(_NARROWEST, width or shutil.get_terminal_size((120, 24)).columns)
    return _Painter(columns, has_colour).page(list(_lines(entry_of(record), "", "", lines)), totals(record))


def _can_draw() -> bool:
    try:
        "".join(_LINES).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _lines(entry: Entry, frame: str, below: str, drawn: tuple[str, ...]) -> Iterator[_Line]:
    fork, last, pipe, blank = drawn
    yield _Line(frame, entry)
    for index, child in enumerate(entry.children):
        is_last = index == len(entry.children) - 1
        yield from _lines(child, below + (last if is_last else fork), below + (blank if is_last else pipe), drawn)


class _Painter:
    def __init__(self, columns: int, has_colour: bool) -> None:
        self._columns, self._has_colour = columns, has_colour

    def page(self, lines: list[_Line], total: Totals) -> str:
        widest = max(len(line.frame) + width(line.entry.label) for line in lines)
        self._label_width = min(_WIDEST_LABEL, widest)
        self._text_width = self._columns - self._label_width - 2 - _WIDTH_OF_COLUMN * len(_COLUMNS)
        header = self._paint("".join(name.rjust(_WIDTH_OF_COLUMN) for name in _COLUMNS), "frame")
        first = " " * (self._columns - _WIDTH_OF_COLUMN * len(_COLUMNS)) + header
        footer = [self._paint(in_words(total), "frame")]
        if self._has_colour:
            footer.append("  ".join(self._paint(words, origin) for origin, words in ORIGINS.items()))
        return "\n".join([first, *map(self._line, lines), "", *footer])

    def _line(self, line: _Line) -> str:
        entry = line.entry
        label = cut(one_line(entry.label), max(8, self._label_width - len(line.frame)))
        room = self._text_width + min(0, self._label_width - len(line.frame) - width(label))
        pieces = self._pieces(entry, max(0, room))
        used = len(line.frame) + width(label) + 2 + sum(width(piece.text) for _, piece in pieces)
        drawn = [self._paint(line.frame, "frame"), self._paint(label, "state" if entry.is_state else "step")]
        gap = " " * (2 + max(0, self._label_width - len(line.frame) - width(label)))
        text = "".join(self._paint(piece.text, style) for style, piece in pieces)
        padding = " " * (self._columns - _WIDTH_OF_COLUMN * len(_COLUMNS) - used - len(gap) + 2)
        return f"{''.join(drawn)}{gap}{text}{padding}{_numbers(entry)}".rstrip()

    def _pieces(self, entry: Entry, room: int) -> list[tuple[str, Piece]]:
        if entry.error is not None:
            message = f"{type(entry.error).__name__}: {entry.error}"
            return [("error", piece) for piece in shorten([Piece("prompt", message)], room)]
        if entry.status == "failed":
            return [("error", Piece("prompt", "failed"))]
        shown = [(str(piece.origin), piece) for piece in shorten(entry.pieces, room)]
        if not shown and entry.status in ("waiting", "running") and not entry.is_state:
            return [("frame", Piece("prompt", entry.status))]
        return shown

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self._has_colour and text else text


def _numbers(entry: Entry) -> str:
    if not entry.has_calls:
        return ""
    usage = entry.usage
    sampled = usage.completion_tokens - usage.forced_tokens
    counts = [f"{count:,}" for count in (usage.prompt_tokens, usage.cached_tokens, sampled, usage.forced_tokens)]
    seconds = "" if entry.seconds is None else f"{entry.seconds * 1000:,.0f}"
    return "".join(number.rjust(_WIDTH_OF_COLUMN) for number in (*counts, seconds))


def in_words(total: Totals) -> str:
    """One sentence: calls, tokens, what the cache saved, time."""
    usage = total.usage
    cached = f"{usage.cached_tokens / usage.prompt_tokens:.0%} of them cached" if usage.prompt_tokens else "none cached"
    forced = f", {usage.forced_tokens:,} of them forced" if usage.forced_tokens else ""
    failed = f", {total.failed} failed" if total.failed else ""
    calls = f"{total.calls:,} model call{'s' * (total.calls != 1)}{failed}"
    return (
        f"{calls}: {usage.prompt_tokens:,} prompt tokens ({cached}), "
        f"{usage.completion_tokens:,} written{forced}, {total.seconds:,.2f} s"
    )
