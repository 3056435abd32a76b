"""Where in the user's program something was written."""

from __future__ import annotations

import sys

_MACHINERY = (
    "lmprog.location",
    "lmprog.state",
    "lmprog.forks",
    "lmprog.program",
    "lmprog.graph",
    "lmprog.placeholders",
    "lmprog.tracing",
    "lmprog.compat",
    "contextlib",
)


def program_line() -> str:
    """ "file:line" of the nearest caller that is not this package's machinery."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_MACHINERY):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
