"""Python functions that a model may call: `gen("call", tools=[search, calculate])`.

The output is always the JSON of one call with arguments that fit the function's signature, so it can be run as it is.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union

from lmprog.errors import InvalidArgument

if TYPE_CHECKING:
    from lmprog.state import State

Function = Callable[..., Any]


class ToolCall(NamedTuple):
    """A call that the model has written. `run()` makes it."""

    name: str
    arguments: dict[str, Any]  # as the function's signature types them
    function: Function

    def run(self) -> Any:
        return self.function(**self.arguments)


class Toolbox:
    """Functions by name, and the type of a call of one of them."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self.functions = {_name_of(function): function for function in functions}
        if not self.functions or len(self.functions) != len(functions):
            raise InvalidArgument("tools must be functions with different names, at least one.")
        calls = tuple(_call_type(name, function) for name, function in self.functions.items())
        self.call_type: Any = Union[calls]  # noqa: UP007 - made at run time

    def schema(self) -> str:
        from lmprog.schema import to_json_schema

        return to_json_schema(self.call_type)

    def read(self, text: str) -> ToolCall:
        from lmprog.schema import from_json

        call = from_json(self.call_type, text)
        arguments = {each.name: getattr(call.arguments, each.name) for each in dataclasses.fields(call.arguments)}
        return ToolCall(call.name, arguments, self.functions[call.name])

    def describe(self) -> str:
        """The functions in words, to put into a prompt: signature and docstring of each."""
        return "\n".join(_in_words(name, function) for name, function in self.functions.items())


def final_answer(answer: str) -> str:
    """Give the final answer."""
    return answer


def use_tools(s: State, tools: Sequence[Function], *, max_calls: int = 8, **options: Any) -> str:
    """Let the model call tools, one a turn, until it gives its final answer. Returns that answer.

    Each call is an assistant turn; its result, as JSON, or what went wrong, a user turn after it. After `max_calls`
    calls only the final answer is allowed, so the loop always ends. options: of the gens. Say in the prompt which tools
    there are (`Toolbox(tools).describe()`).
    """
    from lmprog.language import assistant, gen, user

    for number in range(max_calls + 1):
        allowed = [*tools, final_answer] if number < max_calls else [final_answer]
        s += assistant(gen("tool_call", tools=allowed, **options))
        call: ToolCall = s["tool_call"]
        if call.function is final_answer:
            break
        s += user(f"Result of {call.name}: {_result_of(call)}")
    return str(call.run())


def _result_of(call: ToolCall) -> str:
    try:
        return json.dumps(call.run(), ensure_ascii=False, default=str)
    except Exception as error:  # the model is told, and may try something else
        return f"{type(error).__name__}: {error}"


def _name_of(function: Function) -> str:
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise InvalidArgument(f"A tool is a function with a name, not {function!r}.")
    return name


def _call_type(name: str, function: Function) -> Any:
    arguments = dataclasses.make_dataclass(f"{name}_arguments", _fields_of(name, function), kw_only=True)
    return dataclasses.make_dataclass(f"{name}_call", [("name", Literal[name]), ("arguments", arguments)])


def _fields_of(name: str, function: Function) -> list[tuple[str, Any, Any]]:
    hints = typing.get_type_hints(function, include_extras=True)
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidArgument(f"{name}({parameter}) cannot be a tool: its parameters must have names.")
        if parameter.name not in hints:
            raise InvalidArgument(f"{name}() cannot be a tool: its parameter {parameter.name!r} has no type.")
        fields.append((parameter.name, hints[parameter.name], _default_of(parameter)))
    return fields


def _default_of(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return dataclasses.field()
    return dataclasses.field(default_factory=lambda: parameter.default)


def _in_words(name: str, function: Function) -> str:
    text = inspect.getdoc(function)
    return f"{name}{inspect.signature(function)}" + (f": {text}" if text else "")
