"""Items of a task: from a JSON Lines, JSON or CSV file, a saved dataset folder, or the Hugging Face Hub.

items.jsonl   items.json   items.csv     one item per line, list element or row
folder                                   as `datasets` saved it
hf:owner/name:config:split               the `datasets` package loads it; config may be empty
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from lmprog.errors import InvalidArgument, MissingDependency
from lmprog.json_lines import checked_object, read_objects
from lmprog.keyed_lines import Numbering, hash_of

Data: TypeAlias = "str | Path | Sequence[Mapping[str, Any]]"


@dataclass(frozen=True, slots=True)
class Item:
    key: str  # hash of the content; the second item of the same content has #2 after it
    index: int  # place in the data
    data: Mapping[str, Any]


def load_items(data: Data, limit: int | None = None) -> list[Item]:
    """The first `limit` items of a source. InvalidArgument for one that is not there, not readable, or empty."""
    rows = list(_rows(data) if isinstance(data, str | Path) else data)[:limit]
    if not rows:
        raise InvalidArgument(f"There are no items in {data if isinstance(data, str | Path) else 'the data given'}.")
    return numbered(rows)


def numbered(rows: Iterable[Mapping[str, Any]]) -> list[Item]:
    numbering = Numbering()
    return [Item(numbering.key(content_hash(row)), index, row) for index, row in enumerate(rows)]


def content_hash(row: Mapping[str, Any], salt: str = "") -> str:
    """Depends on nothing but the content (and the salt)."""
    return hash_of(salt + json.dumps(row, sort_keys=True, ensure_ascii=False, default=str))


def _rows(source: str | Path) -> Iterable[Mapping[str, Any]]:
    path = Path(source)
    if path.is_file():
        return _file_rows(path)
    if path.is_dir():
        return [dict(row) for row in _datasets().load_from_disk(str(path))]
    if str(source).startswith("hf:"):
        return _hub_rows(str(source))
    raise InvalidArgument(
        f"There is no file or folder {str(source)!r};", hint="data on the Hub is hf:owner/name:config:split."
    )


def _file_rows(path: Path) -> Iterable[Mapping[str, Any]]:
    read = _READERS.get(path.suffix)
    if read is None:
        raise InvalidArgument(f"{path} is none of {', '.join(_READERS)}.")
    return read(path)


def _read_json_lines(path: Path) -> list[Mapping[str, Any]]:
    return [value for _, value in read_objects(path)]


def _read_json(path: Path) -> list[Mapping[str, Any]]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON: {error}.") from error
    if not isinstance(values, list):
        raise InvalidArgument(f"{path} is not a list of objects.")
    return [checked_object(f"{path}, element {number}", value) for number, value in enumerate(values)]


def _read_csv(path: Path) -> list[Mapping[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_READERS: Mapping[str, Callable[[Path], list[Mapping[str, Any]]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
}


def _hub_rows(source: str) -> Iterable[Mapping[str, Any]]:
    parts = source.split(":")
    if len(parts) != 4:
        raise InvalidArgument(f"{source!r} is not hf:owner/name:config:split; leave the config empty if there is none.")
    _, name, config, split = parts
    load = _datasets().load_dataset
    try:
        rows = load(name, config or None, split=split)
    except (OSError, ValueError) as error:  # no connection, no such data; no such config or split
        reason = str(error).splitlines()[0].rstrip(".")
        raise InvalidArgument(
            f"{source!r} could not be loaded: {reason}.", hint="Without a connection, give a file or a saved folder."
        ) from error
    return [dict(row) for row in rows]


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependency("Reading this data needs datasets.", hint="Run: pip install datasets") from error
    return datasets
