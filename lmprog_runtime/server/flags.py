"""Command line flags, made from the settings' dataclasses so that they cannot drift. Standard library only."""

from __future__ import annotations

import argparse
import dataclasses
import os
import types
import typing
from typing import Any

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.server.settings import ServerSettings

OTHER_NAMES = {
    "model": ("--model-path",),
    "max_running": ("--max-running-requests",),
    "step_tokens": ("--chunked-prefill-size",),
    "max_queue": ("--max-queued-requests",),
    "otlp_endpoint": ("--otlp-traces-endpoint",),
}
"""Names of the same settings in SGLang and vLLM."""

KEYS = {"api_key": "LMPROG_API_KEY", "admin_api_key": "LMPROG_ADMIN_API_KEY"}
"""Secrets come from the environment unless given; a command line can be read by everybody on the machine."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field of RuntimeConfig and ServerSettings."""
    for cls, title in ((RuntimeConfig, "model and runtime"), (ServerSettings, "server")):
        group = parser.add_argument_group(title)
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            _add_flag(group, field, hints[field.name])


def _add_flag(group: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    names = [f"--{field.name.replace('_', '-')}", *OTHER_NAMES.get(field.name, ())]
    text = field.metadata["help"].replace("%", "%%")
    shared = {"dest": field.name, "default": field.default}
    if hint is bool:
        group.add_argument(*names, help=text, action=argparse.BooleanOptionalAction, **shared)
        return
    if typing.get_origin(hint) is typing.Literal:
        group.add_argument(*names, help=text, choices=typing.get_args(hint), **shared)
        return
    default = f" (default: {field.default})" if field.default is not None else ""
    group.add_argument(*names, help=text + default, type=_plain_type(hint), metavar=field.name.upper(), **shared)


def _plain_type(hint: Any) -> Any:
    """`int | None` is given as an int."""
    if isinstance(hint, types.UnionType):
        return next(part for part in typing.get_args(hint) if part is not types.NoneType)
    return hint


def runtime_config(options: argparse.Namespace) -> RuntimeConfig:
    return RuntimeConfig(**_values(options, RuntimeConfig))


def server_settings(options: argparse.Namespace) -> ServerSettings:
    values = _values(options, ServerSettings)
    for name, variable in KEYS.items():
        values[name] = values[name] or os.environ.get(variable)
    return ServerSettings(**values)


def _values(options: argparse.Namespace, cls: type[Any]) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in dataclasses.fields(cls)}
