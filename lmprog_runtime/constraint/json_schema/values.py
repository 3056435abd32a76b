"""JSON values as JSON Schema compares them: 1 equals 1.0, true does not equal 1, the order of keys does not count."""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, NoReturn

from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, RequestRefused

NULL, BOOLEAN, NUMBER, STRING, ARRAY, OBJECT = KINDS = range(6)
"""The six types of the data model. An integer is a number."""

MAX_EXPONENT = 1000
"""Numbers in a schema are below 1e1000: their digits are written out in the automaton."""


def parse(text: str, what: str = "schema") -> Any:
    """The JSON value of a text, with exact decimals. `what` it is, for messages.

    Raises ConstraintInvalid for text that is not JSON, ConstraintTooLarge for nesting that the parser cannot follow.
    """
    try:
        return json.loads(text, parse_float=_decimal, parse_constant=_refuse_constant)
    except RecursionError:
        raise ConstraintTooLarge(f"The {what} is nested too deeply to be read; make it flatter.") from None
    except RequestRefused:
        raise
    except json.JSONDecodeError as error:
        raise ConstraintInvalid(f"The {what} is not JSON: {error}.") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise ConstraintTooLarge(f"The {what} holds a number that is too long: {error}.") from None


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if value and abs(value.adjusted()) > MAX_EXPONENT:
        raise ConstraintTooLarge(f"The schema holds the number {text}, beyond 1e{MAX_EXPONENT}; use a smaller one.")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ConstraintInvalid(f"The schema is not JSON: {name} is not a JSON number.")


def kind_of(value: Any) -> int:
    """The type of a parsed value, as one of KINDS."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, (int, Decimal)):
        return NUMBER
    if isinstance(value, str):
        return STRING
    return ARRAY if isinstance(value, list) else OBJECT


def is_number(value: Any) -> bool:
    return kind_of(value) == NUMBER


def is_count(value: Any) -> bool:
    """Whether a value is a non-negative integer, which may be written 2.0."""
    return is_number(value) and value >= 0 and value == int(value)


def identity(value: Any) -> Hashable:
    """A hashable image: equal exactly for values that JSON Schema holds to be equal. Source: core section 4.2.2."""
    kind = kind_of(value)
    if kind == NUMBER:
        return (NUMBER, Decimal(value))
    if kind == ARRAY:
        return (ARRAY, tuple(identity(item) for item in value))
    if kind == OBJECT:
        return (OBJECT, frozenset((name, identity(item)) for name, item in value.items()))
    return (kind, value)
