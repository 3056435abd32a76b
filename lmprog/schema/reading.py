"""JSON text to plain values, strictly, and the words in which a value that does not fit is reported."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from lmprog.errors import InvalidOutput

Path = tuple[str | int, ...]  # member names and positions, from the root

_LONGEST_INTEGER = 4_300  # digits; Python's own limit for reading integers from text


class Real(float):
    """A number with a fraction or an exponent. Keeps its text, so that 1e30 can still be read as an exact integer."""

    text: str

    def __new__(cls, text: str) -> Real:
        number = super().__new__(cls, text)
        number.text = text
        return number


def parse(text: str) -> Any:
    """The value of a JSON text, numbers with a fraction or exponent as `Real`. Raises InvalidOutput."""
    try:
        return json.loads(text, parse_float=Real, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidOutput(
            f"The output is not JSON: {error.msg} at character {error.pos}, {_around(text, error.pos)}."
        ) from None
    except RecursionError:
        raise InvalidOutput("The output is nested too deeply.") from None
    except ValueError as error:  # an integer of more digits than Python reads, or a constant that is not JSON
        raise InvalidOutput(f"The output cannot be read: {error}.") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _around(text: str, position: int) -> str:
    after = text[position : position + 20]
    return f"before {after!r}" if after else f"after {text[max(0, position - 20) : position]!r}"


def pointer(path: Path) -> str:
    """RFC 6901. The root is the empty text."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def mismatch(path: Path, value: Any, wanted: str) -> InvalidOutput:
    return invalid(path, f"{shown(value)} is not {wanted}")


def invalid(path: Path, sentence: str) -> InvalidOutput:
    where = pointer(path)
    return InvalidOutput(f"At {where or 'the root'}: {sentence}.", where)


def shown(value: Any) -> str:
    """A value as JSON, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def as_integer(value: Any) -> int:
    """JSON Schema counts 1.0 and 1e3 as integers, and so do we."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, Real):
        raise ValueError
    exact = Decimal(value.text)
    if exact.adjusted() >= _LONGEST_INTEGER or exact != exact.to_integral_value():
        raise ValueError
    return int(exact)


def as_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    try:
        number = float(value)
    except OverflowError:
        raise ValueError from None
    if math.isinf(number):
        raise ValueError
    return number


def as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def as_null(value: Any) -> None:
    if value is not None:
        raise ValueError


def plain(value: Any) -> Any:
    """A parsed value without `Real`: what json.loads would give."""
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def with_integers(value: Any) -> Any:
    """A parsed value with 1.0 and 1e30 written as the integers that they are, for readers that know fewer forms."""
    if isinstance(value, Real):
        try:
            return as_integer(value)
        except ValueError:
            return value
    if isinstance(value, list):
        return [with_integers(item) for item in value]
    return {key: with_integers(item) for key, item in value.items()} if isinstance(value, dict) else value


def same(a: Any, b: Any) -> bool:
    """Equality of JSON scalars: true is not 1, but 1 is 1.0."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
