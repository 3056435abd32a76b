"""Checks of what programs pass in, at the place where they pass it. Each returns the value in the form that is stored.

Inputs are copied, never kept or changed. A value that can never work is InvalidArgument; a keyword that nobody knows is
UnknownParameter.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from lmprog.errors import InvalidArgument, UnknownParameter
from lmprog.sampling import Sampling

P = ParamSpec("P")
T = TypeVar("T")
Check = Callable[[str, Any], Any]


def guess_unknown_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Make a misspelt keyword an UnknownParameter that names the likely one. Type checkers see the plain signature."""
    known = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise unknown_parameter(function.__name__, name, known)
        return function(*args, **kwargs)

    return checked


def unknown_parameter(where: str, name: str, known: Iterable[str]) -> UnknownParameter:
    known = [each for each in known if each != "self"]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it knows {', '.join(known)}."
    return UnknownParameter(f"{where}() has no parameter {name!r};", hint=hint)


def checked_sampling(where: str, given: Mapping[str, Any]) -> Sampling:
    """`sampling_from`, for names that a user wrote."""
    for name in given:
        if name not in CHECKS:
            raise unknown_parameter(where, name, CHECKS)
    return sampling_from(given)


def sampling_from(given: Mapping[str, Any]) -> Sampling:
    """Checked sampling parameters. None means "not given". All names must be fields of Sampling."""
    return Sampling(**{name: CHECKS[name](name, value) for name, value in given.items() if value is not None})


def integer(minimum: int, *, also: tuple[int, ...] = ()) -> Check:
    extra = "".join(f"{value} or " for value in also)

    def check(name: str, value: Any) -> int:
        number = _as_integer(value)
        if number is None or (number < minimum and number not in also):
            raise InvalidArgument(f"{name} must be {extra}a whole number of at least {minimum}, not {value!r}.")
        return number

    return check


def _as_integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def number(minimum: float, maximum: float = math.inf, *, is_open: bool = False) -> Check:
    """`is_open`: the minimum itself is not allowed."""
    lower = f"above {minimum:g}" if is_open else f"of at least {minimum:g}"
    bounds = lower if math.isinf(maximum) else f"{lower} and at most {maximum:g}"

    def check(name: str, value: Any) -> float:
        real = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
        if not (minimum <= real <= maximum and math.isfinite(real)) or (is_open and real == minimum):
            raise InvalidArgument(f"{name} must be a finite number {bounds}, not {value!r}.")
        return real

    return check


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, not {value!r}.")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several; none of them empty."""
    many = (value,) if isinstance(value, str) else _tuple(name, value, "a text or a list of texts")
    for each in many:
        if not isinstance(each, str) or not each:
            raise InvalidArgument(f"{name} takes texts that are not empty, not {each!r}.")
    return many


def token_ids(name: str, value: Any) -> tuple[int, ...]:
    many = _tuple(name, value, "a list of token ids") if _as_integer(value) is None else (value,)
    return tuple(integer(0)(f"Each of {name}", each) for each in many)


def token_biases(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidArgument(f"{name} must map token ids to numbers, not {value!r}.")
    bias = number(-math.inf)
    return {integer(0)(f"Each key of {name}", k): bias(f"Each value of {name}", v) for k, v in value.items()}


def _tuple(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{name} must be {wanted}, not {value!r}.")
    return tuple(value)


def finish(name: str, value: Any) -> str:
    if value not in ("close",):
        raise InvalidArgument(f'{name} must be "close", not {value!r}.')
    return str(value)


def regex(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be a regular expression as text, not {value!r}.")
    try:
        re.compile(value)
    except re.error as error:
        where = "" if error.pos is None else f" at position {error.pos}"
        raise InvalidArgument(f"{name} {_short(value)} is not a regular expression: {error.msg}{where}.") from None
    except (RecursionError, OverflowError) as error:
        raise InvalidArgument(f"{name} {_short(value)} is too large or nested too deeply: {error}.") from None
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def variable_name(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidArgument(f"The name of a variable must be a text that is not empty, not {value!r}.")
    return value


def choice_texts(value: Any) -> tuple[str, ...]:
    """The choices in order, repeated ones once."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(f"choices must be a list of texts, not {value!r}.")
    many = tuple(value)
    if not many:
        raise InvalidArgument("choices is empty;", hint="give at least one text to choose from.")
    for index, each in enumerate(many):
        if not isinstance(each, str):
            raise InvalidArgument(f"choices[{index}] must be a text, not {each!r};", hint="write str(...) around it.")
    return tuple(dict.fromkeys(many))


CHECKS: Mapping[str, Check] = {
    "max_tokens": integer(1),
    "min_tokens": integer(0),
    "n": integer(1),
    "best_of": integer(1),
    "temperature": number(0),
    "top_p": number(0, 1, is_open=True),
    "top_k": integer(1, also=(-1,)),
    "min_p": number(0, 1),
    "repetition_penalty": number(0, is_open=True),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "logit_bias": token_biases,
    "stop": texts,
    "stop_token_ids": token_ids,
    "stop_regex": regex,
    "ignore_eos": flag,
    "seed": integer(0),
    "logprobs": flag,
    "top_logprobs": integer(0),
    "finish": finish,
}
