"""A file of JSON lines by key, that survives its writer: of batches that go on after a crash, and of evaluations.

A line is written with one `write` and synced before its item counts as done. A line that a crash left half-written is
cut off when the file is opened again. The file is locked while it is open.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from lmprog.errors import InvalidArgument


class KeyedLines:
    """`owner` is what messages call the writer: "a batch"."""

    def __init__(self, path: Path, owner: str) -> None:
        self._lock = threading.Lock()
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        try:
            _lock(self._file, path, owner)
            self.found = _read(self._file, path, owner)  # lines from before, by key
        except BaseException:
            self._file.close()
            raise

    def write(self, line: bytes) -> None:
        """Write what `as_line` made of an object with a "key"."""
        with self._lock:
            self._file.write(line)
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def as_line(value: Mapping[str, Any]) -> bytes:
    """TypeError or ValueError for what is no JSON."""
    return (json.dumps(value, ensure_ascii=False) + "\n").encode()


def _lock(file: FileIO, path: Path, owner: str) -> None:
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = owner.partition(" ")[2]
        raise InvalidArgument(
            f"{path} is in use by another {other};", hint="wait for it or give another file."
        ) from None


def _read(file: FileIO, path: Path, owner: str) -> dict[str, dict[str, Any]]:
    """Complete lines by key. What follows the last line end is cut off."""
    file.seek(0)
    data = file.readall()
    complete = data.rfind(b"\n") + 1
    lines: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(data[:complete].splitlines(), start=1):
        try:
            line = json.loads(text)
            lines[line["key"]] = line
        except (ValueError, KeyError, TypeError):
            raise InvalidArgument(f"Line {number} of {path} was not written by {owner}; give another file.") from None
    if complete < len(data):
        file.truncate(complete)
    return lines


class Numbering:
    """Keys of items in their order: the second item of the same key has #2 after it. Not for several threads."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def key(self, key: str) -> str:
        self._seen[key] += 1
        return key if self._seen[key] == 1 else f"{key}#{self._seen[key]}"


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
