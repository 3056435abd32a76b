"""What the commands share: the model that they talk to, and programs and tasks by file and name."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from lmprog.backends.base import Backend
from lmprog.errors import InvalidArgument

_SETTINGS_HERE = ("dtype", "threads", "cache_dir", "disable_radix_cache")
"""Options of commands that are settings of a model in this process; None where they are not given."""


def backend_of(options: argparse.Namespace) -> Backend:
    """The server at --url, the API at --api, or a model here. InvalidArgument for settings of a model elsewhere."""
    api = getattr(options, "api", None)
    settings = {name: value for name in _SETTINGS_HERE if (value := getattr(options, name, None)) is not None}
    if settings and (options.url or api):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in settings)
        raise InvalidArgument(
            f"{flags} would be settings of a model here;",
            hint=f"leave them out with {'--url' if options.url else '--api'}.",
        )
    if options.url:
        from lmprog.backends.native import RuntimeEndpoint

        return RuntimeEndpoint(options.url)
    if api:
        from lmprog.backends.openai import OpenAI

        return OpenAI(options.model, is_chat_model=True, base_url=api)
    from lmprog.backends.local import Runtime

    return Runtime(options.model, **settings)


def named_in_file(spec: str, kind: type, noun: str) -> Any:
    """The object `name` of `file.py:name`, or the only one of its kind in `file.py`.

    Raises InvalidArgument, with the names that are there, when it is not. `noun` is what messages call the kind.
    """
    path, name = (spec, None) if Path(spec).is_file() else _split(spec)
    sys.path.insert(0, str(Path(path).parent))  # as Python does for a script: its neighbours can be imported
    found = {key: value for key, value in runpy.run_path(path).items() if isinstance(value, kind)}
    if name is None and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        wanted = f"several {noun}s; say which" if name is None and found else f"no {noun} {name or ''}".rstrip()
        raise InvalidArgument(f"{path} has {wanted}; it has {', '.join(sorted(found)) or 'none'}.")
    return found[name]


def _split(spec: str) -> tuple[str, str]:
    path, _, name = spec.rpartition(":")
    if not Path(path).is_file():
        raise InvalidArgument(f"{spec!r} is not FILE.py or FILE.py:NAME of a file that is there.")
    return path, name
