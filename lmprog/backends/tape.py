"""What recording and replaying share: how a call is told from others, and how results become lines of JSON.

A call is known by the path of forks that led to its stream, by all that was written on the stream before it, and by its
parameters; not by when it came, for that may change from run to run. The same call, made several times, is several
entries, used in the order in which they were recorded.
"""

from __future__ import annotations

import builtins
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from lmprog import chat
from lmprog.backends.base import (
    ChoiceScore,
    GenerateCall,
    GenerateResult,
    ScoreCall,
    ScoreResult,
    TokenLogprob,
    Usage,
)
from lmprog.errors import BackendError, InvalidArgument, LmprogError

Kind = Literal["generate", "score"]
Operation = list[str]  # ["text", text], ["begin", role], ["end"], ["special", token]; or what a call wrote
FORMAT = "lmprog calls 1"


class Request(NamedTuple):
    """A call as it is told from others."""

    kind: Kind
    path: tuple[int, ...]  # number of the branch at each fork since the stream was opened
    after: int | None  # number of the call before it on the stream; None: there was none
    operations: list[Operation]  # on the stream since then
    parameters: dict[str, Any]
    key: str


class Track:
    """The history of one stream. Pieces of text that come one after the other are one."""

    def __init__(self) -> None:
        self._path: tuple[int, ...] = ()
        self._forked = 0
        self._operations: list[Operation] = []
        self._history = hashlib.blake2b(digest_size=16)  # of all that came before `_operations`
        self._last_call: int | None = None

    def add(self, *operation: str) -> None:
        last = self._operations[-1] if self._operations else [""]
        if operation[0] == last[0] == "text":
            last[1] += operation[1]
        else:
            self._operations.append(list(operation))

    def fork(self) -> Track:
        child = Track()
        child._path = (*self._path, self._forked)
        self._forked += 1
        child._operations = [list(operation) for operation in self._operations]
        child._history, child._last_call = self._history.copy(), self._last_call
        return child

    def request(self, number: int, kind: Kind, parameters: Mapping[str, Any]) -> Request:
        """The next call on the stream."""
        plain: dict[str, Any] = json.loads(json.dumps(parameters))
        operations, after = self._operations, self._last_call
        self._operations, self._last_call = [], number
        self._history.update(json.dumps(operations).encode())
        keyed = self._history.copy()
        keyed.update(json.dumps([kind, self._path, plain], sort_keys=True).encode())
        return Request(kind, self._path, after, operations, plain, keyed.hexdigest())


def generate_parameters(call: GenerateCall) -> dict[str, Any]:
    constraint = None if call.constraint is None else call.constraint._asdict()
    return {**call.sampling.given(), "constraint": constraint, "heal": call.heal}


def score_parameters(call: ScoreCall) -> dict[str, Any]:
    return {"choices": list(call.choices), "unconditional": call.unconditional}


def as_text(operations: list[Operation]) -> str:
    """Operations as the plain rendering of `lmprog.chat`."""
    render = {"begin": chat.role_begin, "end": lambda *_: chat.ROLE_END}
    return "".join(render.get(kind, "".join)(*value) for kind, *value in operations)


# -- results as JSON ------------------------------------------------------------------------------------------------


def encoded_result(result: GenerateResult | ScoreResult) -> dict[str, Any]:
    return {name: _encoded(value) for name, value in result._asdict().items()}


def _encoded(value: Any) -> Any:
    """JSON has lists only: a tuple is an object with one member that says so."""
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item) for item in value]}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, Mapping):
        return {"dict": {_checked_name(name): _encoded(item) for name, item in value.items()}}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise InvalidArgument(f"A {type(value).__name__} in the result of a call cannot be recorded.")


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidArgument(f"The name {name!r} in the result of a call cannot be recorded; it is no text.")
    return name


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        (kind, inner), *_ = value.items()
        if kind == "tuple":
            return tuple(_decoded(item) for item in inner)
        return {name: _decoded(item) for name, item in inner.items()}
    return value


def decoded_result(kind: Kind, value: Mapping[str, Any]) -> GenerateResult | ScoreResult:
    parts = {name: _decoded(part) for name, part in value.items()}
    parts["usage"] = Usage(*parts["usage"])
    if kind == "generate":
        parts["logprobs"] = tuple(TokenLogprob(*each) for each in parts["logprobs"])
        return GenerateResult(**parts)
    parts["choices"] = tuple(ChoiceScore(*each) for each in parts["choices"])
    return ScoreResult(**parts)


# -- errors as JSON -------------------------------------------------------------------------------------------------


def encoded_error(error: BaseException) -> dict[str, Any]:
    is_plain = all(value is None or isinstance(value, str | int | float) for value in error.args)
    return {"type": type(error).__name__, "arguments": list(error.args) if is_plain else [str(error)]}


def decoded_error(value: Mapping[str, Any]) -> BaseException:
    """An error of the same type, if it is one of Python's or of lmprog's; else a BackendError that names the type."""
    name, arguments = value["type"], value["arguments"]
    found = _types_of(LmprogError).get(name) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        try:
            return found(*arguments)
        except TypeError:  # its constructor wants something else
            pass
    return BackendError(f"{name}: {', '.join(map(str, arguments))}")


def _types_of(base: type[LmprogError]) -> dict[str, type[LmprogError]]:
    found = {base.__name__: base}
    for child in base.__subclasses__():
        found.update(_types_of(child))
    return found
