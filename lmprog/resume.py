"""The file that lets a batch go on after a crash: one line of JSON for each item that finished well."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lmprog.backends.base import Usage
from lmprog.errors import InvalidArgument
from lmprog.executor import Executor
from lmprog.keyed_lines import KeyedLines, Numbering, as_line, hash_of
from lmprog.program import Run
from lmprog.record import Record
from lmprog.variables import Assigned


class ResumeLog:
    def __init__(self, path: Path, key: Callable[[Any], str] | None) -> None:
        self._key = key or _hash_of
        self._lock = threading.Lock()
        self._numbering = Numbering()
        self._lines = KeyedLines(path, "a batch")

    def once(self, program: str, index: int, item: Any, run_it: Callable[[], Run[Any]]) -> Run[Any]:
        """The run of an item: restored if the file has it, else made by `run_it` and written."""
        try:
            key = self._numbered_key(item)
            if key in self._lines.found:
                return restored(program, self._lines.found[key])
        except Exception as error:
            return Run.failed(program, error)
        run = run_it()
        if run.error() is not None:
            return run
        return self._written(key, index, run, program)

    def close(self) -> None:
        self._lines.close()

    def _written(self, key: str, index: int, run: Run[Any], program: str) -> Run[Any]:
        try:
            line = as_line({"key": key, "index": index, **as_data(run)})
        except Exception as error:  # a value that cannot be read, or not be written as JSON: the item is not done
            return Run.failed(program, error)
        self._lines.write(line)
        return run

    def _numbered_key(self, item: Any) -> str:
        key = self._key(item)
        if not isinstance(key, str):
            raise InvalidArgument(f"key must return a text, not {key!r}.")
        with self._lock:
            return self._numbering.key(key)


# -- runs as data -------------------------------------------------------------------------------------------------


def as_data(run: Run[Any]) -> dict[str, Any]:
    """A finished run as JSON data: variables, ret_value, usage, and the transcript as [kind, name, text] triples."""
    return {
        "variables": {name: plain(run[name]) for name in run.variables()},
        "ret_value": plain(run.ret_value),
        "usage": run.usage._asdict(),
        "transcript": [[record.kind, record.name, record.text] for record in run._executor.transcript],
    }


def restored(program: str, data: Mapping[str, Any]) -> Run[Any]:
    """The run that `as_data` was made of. Typed values are what JSON makes of them."""
    record = Record("program", program, status="done", usage=Usage(**data["usage"]))
    transcript = [Record(kind, name, text, status="done") for kind, name, text in data["transcript"]]
    executor = Executor.closed(f"program {program!r}", record, transcript)
    return Run.finished(executor, {k: Assigned(v) for k, v in data["variables"].items()}, data["ret_value"])


def plain(value: Any) -> Any:
    """A value as JSON data. InvalidArgument for what has no such form."""
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise InvalidArgument(f"A {type(value).__name__} cannot be written to the resume file, {value!r:.80}.")


def _hash_of(item: Any) -> str:
    try:
        text = json.dumps(plain(item), sort_keys=True, ensure_ascii=False)
    except InvalidArgument as error:
        raise InvalidArgument(f"This item has no key of its own; give key=. {error}") from None
    return hash_of(text)
