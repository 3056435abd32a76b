"""The file of an evaluation's records: its settings in the first line, then one line per finished item.

Each line is synced before its item counts as done, so that after a crash the same call goes on where it was, and no
item is in the file twice. A file of other settings is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmprog.errors import InvalidArgument
from lmprog.keyed_lines import KeyedLines, as_line

SETTINGS = "#settings"
Record = Mapping[str, Any]


class RecordFile:
    """Open while an evaluation runs; only one at a time may use the file."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = KeyedLines(path, "an evaluation")
        self.done: dict[str, Record] = dict(self._lines.found)
        try:
            self._check(path, dict(settings))
        except BaseException:
            self._lines.close()
            raise

    def write(self, record: Record) -> None:
        self._lines.write(as_line(record))

    def close(self) -> None:
        self._lines.close()

    def _check(self, path: Path, settings: dict[str, Any]) -> None:
        old = self.done.pop(SETTINGS, None)
        if old is None and not self.done:
            self.write({"key": SETTINGS, **settings})
            return
        before = {name: value for name, value in (old or {}).items() if name != "key"}
        now = json.loads(json.dumps(settings))
        names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
        if names:
            changes = ", ".join(f"{name} {before.get(name)!r} became {now.get(name)!r}" for name in names)
            raise InvalidArgument(f"{path} is of other settings ({changes});", hint="give another output.")
