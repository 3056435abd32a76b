"""Flags of a runtime in this process, made from RuntimeConfig so that they cannot drift."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from typing import Any

from lmprog_runtime.config import RuntimeConfig


def add_runtime_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per field of RuntimeConfig, for a model in this process."""
    group = parser.add_argument_group("a runtime in this process")
    hints = typing.get_type_hints(RuntimeConfig)
    for field in dataclasses.fields(RuntimeConfig):
        name, hint = f"--{field.name.replace('_', '-')}", hints[field.name]
        shared: dict[str, Any] = {"default": field.default, "help": field.metadata["help"].replace("%", "%%")}
        if hint is bool:
            group.add_argument(name, action=argparse.BooleanOptionalAction, **shared)
        else:
            group.add_argument(name, type=_plain_type(hint), metavar=field.name.upper(), **shared)


def _plain_type(hint: Any) -> Any:
    """`int | None` is given as an int; one of several words as text, which the loader checks."""
    if typing.get_origin(hint) is typing.Literal:
        return str
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return next(part for part in parts if part is not types.NoneType)


def runtime_config(options: argparse.Namespace) -> RuntimeConfig:
    return RuntimeConfig(**{field.name: getattr(options, field.name) for field in dataclasses.fields(RuntimeConfig)})
