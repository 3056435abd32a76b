"""A run in the Chrome trace format, for chrome://tracing, Perfetto and speedscope.

Source: "Trace Event Format" (Google, 2016): complete events ("X") on one thread per state, metadata events ("M") that
name the threads. Times are microseconds from the start of the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from lmprog.record import Record
from lmprog.report.totals import is_call

Event = dict[str, Any]
_PROCESS = 1
_PHASES = (("queue", "", "queue"), ("prefill", "queue", "first_token"), ("decode", "first_token", "total"))


def trace_events(record: Record) -> list[Event]:
    """Events of a run: write `{"traceEvents": events}` as JSON. Each state, branch and called run has its own row."""
    return list(_Tracer(record).events())


class _Tracer:
    def __init__(self, root: Record) -> None:
        self._root = root
        self._origin = root.started
        self._now = time.perf_counter()
        self._rows = 0

    def events(self) -> Iterator[Event]:
        yield _metadata("process_name", 0, f"lmprog: {self._root.name}")
        yield from self._state(self._root, self._root.name)

    def _state(self, record: Record, path: str) -> Iterator[Event]:
        row = self._rows
        self._rows += 1
        yield _metadata("thread_name", row, path)
        yield _metadata("thread_sort_index", row, row)
        yield self._complete(record, row, record.name or record.kind)
        yield from self._steps(record, row, path)

    def _steps(self, parent: Record, row: int, path: str) -> Iterator[Event]:
        for record in tuple(parent.children):
            if record.kind in ("program", "branch"):
                yield from self._state(record, f"{path} / {record.name}")
                continue
            if record.started and (is_call(record) or record.kind == "join"):
                yield self._complete(record, row, f"{record.kind} {record.name}".strip())
                yield from self._phases(record, row)
            yield from self._steps(record, row, path)

    def _complete(self, record: Record, row: int, name: str) -> Event:
        end = record.ended or self._now
        return self._event(record.kind, row, name, record.started, end, _arguments(record))

    def _phases(self, record: Record, row: int) -> Iterator[Event]:
        """What the backend says of the time of a call: waiting, reading the prompt, writing."""
        timing = record.timing
        if not all(end in timing for _, _, end in _PHASES):
            return
        begin = (record.ended or self._now) - timing["total"]
        for name, since, until in _PHASES:
            yield self._event("phase", row, name, begin + timing.get(since, 0.0), begin + timing[until], {})

    def _event(
        self, category: str, row: int, name: str, start: float, end: float, arguments: Mapping[str, Any]
    ) -> Event:
        return {
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": round((start - self._origin) * 1e6, 1) if start else 0.0,
            "dur": round(max(0.0, end - start) * 1e6, 1) if start else 0.0,
            "pid": _PROCESS,
            "tid": row,
            "args": dict(arguments),
        }


def _metadata(name: str, row: int, value: str | int) -> Event:
    key = "sort_index" if name == "thread_sort_index" else "name"
    return {"name": name, "ph": "M", "pid": _PROCESS, "tid": row, "args": {key: value}}


def _arguments(record: Record) -> dict[str, Any]:
    usage = record.usage._asdict() if is_call(record) else record.total_usage()._asdict()
    found: dict[str, Any] = {"status": record.status, **usage}
    if record.text:
        found["text"] = record.text
    if record.location:
        found["location"] = record.location
    if record.error is not None:
        found["error"] = f"{type(record.error).__name__}: {record.error}"
    if "finish_reason" in record.meta:
        found["finish_reason"] = record.meta["finish_reason"]
    return found
