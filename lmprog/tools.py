"""Python functions that a model may call: `gen("call", tools=[search, calculate])`.

The output is always the JSON of one call with arguments that fit the function's signature, so it can be run as it is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
    """Functions that can be called, by name. Their parameters have types; docstrings say what they are for."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self.functions = {_name_of(function): function for function in functions}
        if not self.functions or len(self.functions) != len(functions):
            raise InvalidArgument("tools must be functions with different names, at least one.")

    def schema(self) -> str:
        """Of a call of one of them, as JSON text. Raises InvalidArgument for parameters that JSON cannot give."""
        from lmprog.schema import calls_schema

        return calls_schema(list(self.functions.values()))

    def read(self, text: str) -> ToolCall:
        from lmprog.schema import call_from_json

        function, arguments = call_from_json(list(self.functions.values()), text)
        return ToolCall(_name_of(function), arguments, function)

    def describe(self) -> str:
        """The functions in words, to put into a prompt: what each does, and its parameters."""
        from lmprog.schema import describe, tool_schema

        return "\n\n".join(_in_words(describe, tool_schema(function)) for function in self.functions.values())


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
    try:
        inspect.signature(function)
    except ValueError:  # of some functions written in C
        raise InvalidArgument(f"{name}() cannot be a tool: Python does not know its parameters.") from None
    return name


def _in_words(describe: Callable[[Any], str], tool: dict[str, Any]) -> str:
    _, *parameters = describe(tool["parameters"]).splitlines()
    about = " ".join(tool["description"].split())
    return "\n".join([f"{tool['name']}: {about}" if about else tool["name"], *parameters])
