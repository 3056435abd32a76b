"""What happened in a run, as a tree of small records: the input of reports, and the transcript that `text()` renders.

Owned by the executor of each state; others only read. A record is filled while its step runs, so a reader of a live run
may see a `gen` whose text still grows. Times are `time.perf_counter()` seconds of one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from lmprog.backends.base import Usage

Kind = Literal[
    "program",  # a run; its children are its steps, and the runs that it called
    "branch",  # a state made by fork; its children are its own steps
    "text",  # literal text of the program
    "role_begin",  # name: the role
    "role_end",  # name: the role
    "special",  # text: the control token's name
    "gen",  # name: the variable
    "select",  # name: the variable; meta has the choices and their scores
    "fork",  # children: the branches, in order
    "join",  # name: the mode; text: what it appended
    "scope",  # name: the variable of a `var_scope`; text: what was written inside
]
Status = Literal["waiting", "running", "done", "failed"]
Source = Literal["prompt", "generated", "forced"]

NO_USAGE = Usage()
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Segment(NamedTuple):
    """A piece of text and where it came from."""

    source: Source
    text: str


@dataclass(slots=True, eq=False)
class Record:
    """One node of the tree: a state (program, branch) or one step of it."""

    kind: Kind
    name: str = ""
    text: str = ""  # what the step put into the transcript; empty for states, forks and role marks
    status: Status = "waiting"
    usage: Usage = NO_USAGE  # of this record's own model call, children not counted
    stream_usage: Usage | None = None  # where the state's stream has less of it: its prompt once, and what stays there
    timing: Mapping[str, float] = field(default_factory=lambda: NOTHING)  # seconds: queue, first_token, total
    meta: Mapping[str, Any] = field(default_factory=lambda: NOTHING)  # finish_reason, choices, scores, ...
    started: float = 0.0
    ended: float = 0.0
    location: str = ""  # "path/file.py:12" of the program line that appended the step
    error: BaseException | None = None
    children: Sequence[Record] = field(default=(), repr=False)

    def segments(self) -> list[Segment]:
        """The text by source. A backend that knows which text it forced reports `meta["segments"]`."""
        if not self.text:
            return []
        if (reported := self.meta.get("segments")) is not None:
            return [Segment(*pair) for pair in reported]
        return [Segment("generated" if self.kind == "gen" else "prompt", self.text)]

    def meta_info(self) -> dict[str, Any]:
        """What is known of a step, flat: token counts, times, and what the backend reported."""
        return {**self.usage._asdict(), **self.timing, **self.meta}

    def walk(self) -> Iterator[Record]:
        """This record and all below it, parents first."""
        pending = [self]
        while pending:
            record = pending.pop()
            yield record
            pending.extend(reversed(record.children))

    def total_usage(self) -> Usage:
        """Usage rolled up over all below, each model call counted once."""
        total = NO_USAGE
        for record in self.walk():
            total = total.plus(record.usage)
        return total
