"""JSON Lines: one object a line. Only a line feed ends a line, for JSON texts may hold every other separator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmprog.errors import InvalidArgument


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file with the numbers of their lines, from 1; empty lines are left out.

    Raises InvalidArgument with the number of a line that is no object.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            yield number, _object(f"{path}, line {number}", line)


def _object(place: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidArgument(f"{place} is not JSON: {error}.") from error
    return checked_object(place, value)


def checked_object(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidArgument(f"{place} is not an object.")
    return value
