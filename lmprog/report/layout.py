"""What is shown of a run: records as entries, with neighbouring texts as one and marks of turns left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from lmprog.backends.base import Usage
from lmprog.record import Kind, Record, Status
from lmprog.report.reuse import cached_characters
from lmprog.report.totals import is_call, seconds_of

Origin = Literal["prompt", "cached", "generated", "forced"]
ORIGINS: Mapping[Origin, str] = {
    "prompt": "read by the model",
    "cached": "read before, from the cache",
    "generated": "generated",
    "forced": "forced by the constraint",
}
_STATES = ("program", "branch")
_TEXTS = ("text", "special")
_SILENT = ("join", "scope")  # they repeat what others wrote


class Piece(NamedTuple):
    origin: Origin
    text: str


class Choice(NamedTuple):
    text: str
    score: float
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a report."""

    kind: Kind
    label: str  # "gen note"; of a text, the turn that it stands in
    pieces: tuple[Piece, ...]
    usage: Usage  # of a state: of all below it
    has_calls: bool
    started: float
    seconds: float | None  # None: took no time worth saying
    status: Status
    error: BaseException | None  # of a state: only if no step below has it
    location: str
    choices: tuple[Choice, ...]
    children: tuple[Entry, ...]

    @property
    def is_state(self) -> bool:
        return self.kind in _STATES


def entry_of(record: Record) -> Entry:
    """The whole tree of a run."""
    return _Maker(record).entry(record, "")


class _Maker:
    def __init__(self, root: Record) -> None:
        self._cached = cached_characters(root)
        self._told = {id(record.error) for record in root.walk() if record.kind not in _STATES}  # by the steps

    def entry(self, record: Record, role: str) -> Entry:
        """role: the turn that the record stands in."""
        is_state = record.kind in _STATES
        usage = record.total_usage() if is_state else record.usage
        return Entry(
            kind=record.kind,
            label=_label(record, role),
            pieces=self._pieces(record),
            usage=usage,
            has_calls=is_call(record) or (is_state and usage != Usage()),
            started=record.started,
            seconds=seconds_of(record) if is_state or is_call(record) else None,
            status=record.status,
            error=None if is_state and id(record.error) in self._told else record.error,
            location=record.location,
            choices=_choices(record),
            children=tuple(self._samples(record) if record.kind == "gen" else self._entries(record.children, role)),
        )

    def _samples(self, record: Record) -> list[Entry]:
        """Of a gen: its samples, each a branch with one step; or the thoughts that were kept apart."""
        steps = [(step, f"sample {child.name}") for child in record.children for step in child.children]
        apart = [(child, child.name) for child in record.children if child.kind == "gen"]
        return [replace(self.entry(step, ""), label=label) for step, label in (*steps, *apart)]

    def _entries(self, records: Iterable[Record], role: str) -> list[Entry]:
        entries: list[Entry] = []
        texts: list[Record] = []
        for record in tuple(records):
            if record.kind in _TEXTS and record.error is None:
                texts.append(record)
                continue
            if record.kind in _SILENT and record.error is None:
                continue
            self._flush(texts, role, entries)
            if record.kind == "role_begin":
                role = record.name
            elif record.kind == "role_end":
                role = ""
            else:
                entries.append(self.entry(record, role))
        self._flush(texts, role, entries)
        return entries

    def _flush(self, texts: list[Record], role: str, entries: list[Entry]) -> None:
        """Neighbouring texts as one entry."""
        if texts:
            pieces = merged(piece for text in texts for piece in self._pieces(text))
            first = self.entry(texts[0], role)
            entries.append(replace(first, pieces=pieces, status=texts[-1].status))
            texts.clear()

    def _pieces(self, record: Record) -> tuple[Piece, ...]:
        border = self._cached.get(record)
        if border is None:
            return tuple(Piece(source, text) for source, text in record.segments())
        return merged([Piece("cached", record.text[:border]), Piece("prompt", record.text[border:])])


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Neighbours of one origin as one, none empty."""
    kept: list[Piece] = []
    for piece in pieces:
        if kept and kept[-1].origin == piece.origin:
            kept[-1] = Piece(piece.origin, kept[-1].text + piece.text)
        elif piece.text:
            kept.append(piece)
    return tuple(kept)


def _label(record: Record, role: str) -> str:
    if record.kind in _TEXTS:
        return role or "text"
    if record.kind in _STATES:
        return record.name
    if record.kind == "fork":
        return f"fork of {len(record.children)}"
    return f"{record.kind} {record.name}".strip()


def _choices(record: Record) -> tuple[Choice, ...]:
    texts: Sequence[str] = record.meta.get("choices", ())
    scores: Sequence[float] = record.meta.get("scores", ())
    return tuple(Choice(text, score, text == record.text) for text, score in zip(texts, scores, strict=False))
