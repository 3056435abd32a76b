"""Calls of functions as JSON: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lmprog.schema import docstrings
from lmprog.schema.forms import Constants, Form, UnionForm
from lmprog.schema.objects import Member, ObjectForm
from lmprog.schema.resolving import arguments_form

Function = Callable[..., Any]


def calls_form(functions: Sequence[Function]) -> Form:
    """A call of one of the functions, with arguments that fit its signature; reads as (function, arguments)."""
    calls = [_call_form(function) for function in functions]
    return calls[0] if len(calls) == 1 else UnionForm(calls)


def _call_form(function: Function) -> Form:
    name = function.__name__
    call = ObjectForm(f"{name}_call", docstrings.summary(function), lambda values: (function, values["arguments"]))
    call.members = [
        Member("name", Constants([(name, name)]), is_required=True),
        Member("arguments", arguments_form(function), is_required=True),
    ]
    return call
