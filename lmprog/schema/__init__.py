"""Typed outputs: from Python types to JSON schemas, and from JSON text back to values of the types.

A spec is a JSON schema as a dict or as JSON text, or a type: a pydantic model, dataclass, TypedDict, Enum, Literal,
None, bool, int, float, str, date, datetime, Any, and list, tuple, dict, Optional and Union of them, generic and
recursive ones included. `Annotated[T, "text"]` describes a member; so do docstrings, and
`field(metadata={"description": ...})`. Limits in `Annotated`, as annotated_types, pydantic and msgspec write them,
become keywords of the schema.

Objects are closed: members that the type does not have are not allowed. Members without a default are required.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from lmprog.errors import InvalidArgument
from lmprog.schema import docstrings, resolving
from lmprog.schema.calls import calls_form
from lmprog.schema.describing import describe_schema
from lmprog.schema.forms import Definitions, Form
from lmprog.schema.partial import partial_json
from lmprog.schema.reading import parse, plain

__all__ = [
    "call_from_json",
    "calls_schema",
    "describe",
    "from_json",
    "partial_json",
    "to_json_schema",
    "tool_schema",
]

_forms_of_classes: WeakKeyDictionary[type, Form] = WeakKeyDictionary()


def to_json_schema(spec: Any) -> str:
    """The schema of a spec as JSON text (2020-12), members in the order they are declared in.

    JSON text is returned as it is, once it is known to be a schema. Raises InvalidArgument.
    """
    if isinstance(spec, str):
        return _checked_text(spec)
    if isinstance(spec, Mapping):
        return _written(dict(spec))
    return _written(_document(_form(spec)))


def from_json(spec: Any, text: str) -> Any:
    """JSON text as a value of a spec's type. For a dict or text as spec: the plain parsed JSON.

    A Union is read as the first of its types, in the order declared, that the value fits. Integers may be written 1.0
    or 1e3. A leap second is the second after it. Raises InvalidOutput, which says what does not fit, and where.
    """
    value = parse(text)
    if isinstance(spec, str | Mapping):
        return plain(value)
    return _form(spec).read(value, ())


def calls_schema(functions: Sequence[Callable[..., Any]]) -> str:
    """The schema of {"name", "arguments"}: a call of one of the functions, as `tool_schema` describes them."""
    return _written(_document(calls_form(functions)))


def call_from_json(functions: Sequence[Callable[..., Any]], text: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that is called, and its arguments, typed as its signature says. Raises InvalidOutput."""
    function, arguments = calls_form(functions).read(parse(text), ())
    return function, arguments


def tool_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """{"name", "description", "parameters"} of a function, from its signature and docstring; parameters is a schema.

    Descriptions of parameters come from `Annotated[T, "text"]` or from the docstring's `Args:` or `:param x:`.
    Raises InvalidArgument for parameters without a type, *args and **kwargs.
    """
    return {
        "name": function.__name__,
        "description": docstrings.summary(function),
        "parameters": _document(resolving.arguments_form(function)),
    }


def describe(spec: Any) -> str:
    """A spec in words, one line for each member, to put into a prompt; with descriptions and docstrings."""
    return describe_schema(json.loads(to_json_schema(spec)))


def _form(spec: Any) -> Form:
    """Only classes are remembered: other types compare equal when they differ, like `int | bool` and `bool | int`."""
    if not issubclass(type(spec), type):
        return resolving.form_of(spec)
    if spec not in _forms_of_classes:
        _forms_of_classes[spec] = resolving.form_of(spec)
    return _forms_of_classes[spec]


def _document(form: Form) -> dict[str, Any]:
    definitions = Definitions()
    return definitions.document(form.schema(definitions))


def _checked_text(text: str) -> str:
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InvalidArgument(f"The schema is not JSON: {error.msg} at {place}.") from None
    except RecursionError:
        raise InvalidArgument("The schema cannot be read: it is nested too deeply.") from None
    except ValueError as error:
        raise InvalidArgument(f"The schema cannot be read: {error}.") from None
    if not isinstance(schema, dict | bool):
        raise InvalidArgument(f"A JSON schema is an object or a boolean, not {text[:60]!r}.")
    return text


def _written(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"The schema cannot be written as JSON: {error}.") from None
