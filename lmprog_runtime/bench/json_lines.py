"""JSON Lines: one value a line. Only a line feed ends a line, for JSON texts may hold every other separator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmprog_runtime.errors import RequestRefused


def read_values(path: Path) -> Iterator[tuple[int, Any]]:
    """The values of a file with the numbers of their lines, from 1; empty lines are left out.

    Raises RequestRefused with the number of a line that is not JSON.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            yield number, _value(path, number, line)


def _value(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise RequestRefused(f"{path}, line {number} is not JSON: {error}.") from error
