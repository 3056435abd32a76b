"""What docstrings say: of the whole, and of each parameter or member (Google's `Args:` and Sphinx's `:param x:`)."""

from __future__ import annotations

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^(Args|Arguments|Parameters|Attributes|Returns|Raises|Yields|Examples?|Notes?):\s*$")
_DESCRIBING = ("Args", "Arguments", "Parameters", "Attributes")
_ENTRY = re.compile(r"^(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_FIELD = re.compile(r"^:(?:param|ivar)\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


def summary(documented: Any) -> str:
    """The docstring up to its first section, if the author wrote one."""
    lines = _lines(documented)
    end = next((i for i, line in enumerate(lines) if _SECTION.match(line) or line.startswith(":")), len(lines))
    return "\n".join(lines[:end]).strip()


def descriptions(documented: Any) -> dict[str, str]:
    """By name of the parameter or member. Text that goes over several lines is joined."""
    found: dict[str, str] = {}
    section, current = "", ""
    for line in _lines(documented):
        if (heading := _SECTION.match(line)) is not None:
            section, current = heading[1], ""
        elif (field := _FIELD.match(line)) is not None:
            current = field[1]
            found[current] = field[2]
        elif section in _DESCRIBING and (entry := _entry(line)) is not None:
            current = entry[1]
            found[current] = entry[2]
        elif current and line.strip() and not line.startswith(":"):
            found[current] = f"{found[current]} {line.strip()}".strip()
        else:
            current = ""
    return {name: text for name, text in found.items() if text}


def _entry(line: str) -> re.Match[str] | None:
    """An entry of a section is indented by one level; what is indented more goes on with the one before."""
    indent = len(line) - len(line.lstrip())
    return _ENTRY.match(line.strip()) if 0 < indent <= 4 else None


def _lines(documented: Any) -> list[str]:
    text = vars(documented).get("__doc__") if isinstance(documented, type) else getattr(documented, "__doc__", None)
    if not isinstance(text, str) or _is_generated(documented, text):
        return []
    return inspect.cleandoc(text).splitlines()


def _is_generated(documented: Any, text: str) -> bool:
    """Dataclasses and, before Python 3.11, Enums get a docstring that nobody wrote."""
    return text == "An enumeration." or text.startswith(f"{getattr(documented, '__name__', '')}(")
