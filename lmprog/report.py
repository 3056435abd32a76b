"""A run as a tree for terminals: what each step read, reused and wrote, and how long it took.

Reads records (`state.record`); knows nothing of executors or backends. Colours say where text came from.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lmprog.backends.base import Usage
from lmprog.record import Record, Segment

_COLOURS = {"prompt": "2", "generated": "32", "forced": "36", "error": "31", "name": "1"}
_COLUMNS = ("prompt", "cached", "sampled", "forced", "ms")
_WIDTH_OF_COLUMN = 8
_SILENT = frozenset({"role_begin", "role_end", "join", "scope"})


class _Line(NamedTuple):
    lead: str  # the branches of the tree, drawn
    label: str
    segments: list[Segment]
    numbers: tuple[int | str, ...]  # as _COLUMNS
    error: str


def render_tree(record: Record, *, width: int | None = None, colour: bool | None = None) -> str:
    """The tree of a run. `width` defaults to the terminal's, colour to a terminal on stdout without NO_COLOR."""
    width = width or max(80, shutil.get_terminal_size((110, 24)).columns)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ if colour is None else colour
    text_width = width - _WIDTH_OF_COLUMN * len(_COLUMNS)
    header = " " * text_width + "".join(name.rjust(_WIDTH_OF_COLUMN) for name in _COLUMNS)
    lines = [_render(line, text_width, colour) for line in _lines(record, "", "")]
    return "\n".join([header, *lines])


def _lines(record: Record, lead: str, below: str) -> Iterator[_Line]:
    yield _line(record, lead)
    children = _shown(record.children)
    for index, child in enumerate(children):
        is_last = index == len(children) - 1
        yield from _lines(child, below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  "))


def _shown(children: Sequence[Record]) -> list[Record]:
    """Steps worth a line; neighbouring texts and role marks are one."""
    shown: list[Record] = []
    for child in children:
        if child.kind in _SILENT and child.error is None and not child.children:
            continue
        if child.kind == "text" and shown and shown[-1].kind == "text":
            shown[-1] = Record("text", text=shown[-1].text + child.text, status="done")
        else:
            shown.append(child)
    return shown


def _line(record: Record, lead: str) -> _Line:
    is_state = record.kind in {"program", "branch"}
    usage = record.total_usage() if is_state else record.usage
    seconds = record.timing.get("total", record.ended - record.started if is_state else 0.0)
    label = record.name if is_state else f"{record.kind} {record.name}".strip()
    error = f"{type(record.error).__name__}: {record.error}" if record.error is not None else ""
    return _Line(lead, label, record.segments(), _numbers(usage, seconds), error)


def _numbers(usage: Usage, seconds: float) -> tuple[int | str, ...]:
    if not usage.prompt_tokens and not usage.completion_tokens:
        return ("",) * len(_COLUMNS)
    sampled = usage.completion_tokens - usage.forced_tokens
    return (usage.prompt_tokens, usage.cached_tokens, sampled, usage.forced_tokens, round(seconds * 1000))


def _render(line: _Line, width: int, colour: bool) -> str:
    def paint(text: str, kind: str) -> str:
        return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m" if colour and text else text

    room = width - len(line.lead) - len(line.label) - 2
    pieces = [Segment("prompt", line.error)] if line.error else _shorten(line.segments, room)
    shown = "".join(text for _, text in pieces)[:room]
    painted = paint(shown, "error") if line.error else "".join(paint(text, source) for source, text in pieces)
    padding = " " * max(0, room - len(shown))
    numbers = "".join(str(number).rjust(_WIDTH_OF_COLUMN) for number in line.numbers)
    return f"{line.lead}{paint(line.label, 'name')}  {painted}{padding}{numbers}".rstrip()


def _shorten(segments: Sequence[Segment], room: int) -> list[Segment]:
    """The segments on one line: control characters escaped, the middle of what is too long left out."""
    flat = [Segment(source, _one_line(text)) for source, text in segments]
    excess = sum(len(text) for _, text in flat) - room
    if excess <= 0:
        return flat
    head = _take(flat, room // 2 - 2)
    tail = _take([_backwards(segment) for segment in flat[::-1]], room - room // 2 - 1)
    return [*head, Segment("prompt", " … "), *map(_backwards, tail[::-1])]


def _backwards(segment: Segment) -> Segment:
    return segment._replace(text=segment.text[::-1])


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _take(segments: Sequence[Segment], count: int) -> list[Segment]:
    taken = []
    for source, text in segments:
        if count <= 0:
            break
        taken.append(Segment(source, text[:count]))
        count -= len(text)
    return taken
