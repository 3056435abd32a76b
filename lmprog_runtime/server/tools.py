"""Tools of a chat request: what the model is shown, and what its answer must match.

A required call is constrained to the envelope `{"name":...,"arguments":{...}}` of one of the tools, so its arguments
always satisfy their schema; with `parallel_tool_calls` to a list of them. With tool_choice "auto" the model may answer
in text, or with calls in its own format (`tool_formats`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Constraint
from lmprog_runtime.server.protocol import ChatRequest, NamedTool, Tool
from lmprog_runtime.server.tool_formats import CALL_CLOSE, CALL_OPEN, HERMES, Schemas, ToolFormat, read_json

MOST_CALLS = 16
"""Of a required list of calls: a model that cannot stop would fill the context."""


class ToolPlan(NamedTuple):
    is_shown: bool = False  # the tools are part of the prompt
    may_call: bool = False  # the answer may hold calls in the model's format
    constraint: Constraint | None = None  # the whole answer is one call, or a list of calls
    tag: Constraint | None = None  # the answer is text with calls that follow their schemas
    format: ToolFormat = HERMES
    only_one: bool = False  # calls after the first are not wanted
    schemas: Schemas = MappingProxyType({})


def tool_plan(request: ChatRequest, known: ToolFormat = HERMES) -> ToolPlan:
    """RequestRefused when the choice names no tool, or a constraint is given beside a required call."""
    choice = request.tool_choice or ("auto" if request.tools else "none")
    if not request.tools:
        if choice != "none":
            raise RequestRefused("tool_choice was given without tools.")
        return ToolPlan()
    if choice == "none":
        return ToolPlan()
    schemas = {tool.function.name: tool.function.parameters for tool in request.tools}
    plan = ToolPlan(is_shown=True, format=known, only_one=request.parallel_tool_calls is False, schemas=schemas)
    if choice == "auto":
        may_call = request.constraint() is None
        is_strict = may_call and known is HERMES and any(tool.function.strict for tool in request.tools)
        return plan._replace(may_call=may_call, tag=_tag(request.tools) if is_strict else None)
    if request.constraint() is not None:
        raise RequestRefused(
            "A required tool call and another constraint were both given; an answer can follow one only."
        )
    as_list = bool(request.parallel_tool_calls) and choice == "required"
    # The envelope is JSON; what ids look like is up to the model's template.
    forced = HERMES._replace(id_prefix=known.id_prefix, id_length=known.id_length)
    return plan._replace(constraint=_envelopes(_chosen(request.tools, choice), as_list), format=forced)


def _chosen(tools: list[Tool], choice: str | NamedTool) -> list[Tool]:
    if not isinstance(choice, NamedTool):
        return tools
    found = [tool for tool in tools if tool.function.name == choice.function.name]
    if not found:
        known = ", ".join(tool.function.name for tool in tools)
        raise RequestRefused(f"tool_choice names {choice.function.name!r}; the tools given are {known}.")
    return found


def _envelopes(tools: list[Tool], as_list: bool) -> Constraint:
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": closed(tool.function.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if as_list:
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": MOST_CALLS}
    return Constraint("json_schema", json.dumps(schema))


def _tag(tools: list[Tool]) -> Constraint:
    """Any text, and calls in Hermes' format; the arguments of those tools that are strict follow their schema."""
    structures = [
        {
            "begin": f'{CALL_OPEN}\n{{"name": {json.dumps(tool.function.name)}, "arguments": ',
            "schema": closed(tool.function.parameters) if tool.function.strict else {"type": "object"},
            "end": f"}}\n{CALL_CLOSE}",
        }
        for tool in tools
    ]
    return Constraint("structural_tag", json.dumps({"structures": structures, "triggers": [CALL_OPEN]}))


def closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """Parameters without further properties, where the schema leaves that open: no function takes arguments that its
    description does not name. What satisfies the result satisfies the schema."""
    names, required = parameters.get("properties"), parameters.get("required", [])
    if not isinstance(names, dict) or not isinstance(required, list) or parameters.keys() & _MAY_NAME_PROPERTIES:
        return parameters
    if any(name not in list(names) for name in required):  # a list: a broken schema may demand what has no hash
        return parameters
    return {**parameters, "additionalProperties": False}


_MAY_NAME_PROPERTIES = frozenset(
    [
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
    ]
)


# -- models whose chat template has no place for tools ----------------------------------------------------------------


def with_tool_text(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools described in the system message, which is made when there is none."""
    if not tools:
        return messages
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": _tool_text(tools)}, *messages]
    first = {**messages[0], "content": f"{messages[0]['content']}\n\n{_tool_text(tools)}"}
    return [first, *messages[1:]]


def _tool_text(tools: Sequence[Tool]) -> str:
    lines = [json.dumps(tool.function.model_dump(exclude_none=True), ensure_ascii=False) for tool in tools]
    return (
        "You can call these functions:\n"
        + "\n".join(lines)
        + f'\nTo call one, answer with {CALL_OPEN}{{"name": ..., "arguments": {{...}}}}{CALL_CLOSE} and nothing else.'
    )


def in_plain_turns(message: dict[str, Any]) -> dict[str, Any]:
    """Calls and their results as text, as `_tool_text` asks for them."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>{message['content']}</tool_response>"}
    calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
    return {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}


def _call_text(function: Mapping[str, str]) -> str:
    return f'{CALL_OPEN}{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"]}}}{CALL_CLOSE}'


# -- models whose chat template shows tools ---------------------------------------------------------------------------


def with_parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Calls with their arguments as values, which templates write as JSON; text would be quoted once more. What is no
    JSON (a call that was cut), or too deep for a template, stays text."""
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments = read_json(call["function"]["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**call["function"], "arguments": arguments}}
