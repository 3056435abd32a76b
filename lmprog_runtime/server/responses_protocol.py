"""POST /v1/responses as it comes over the wire, and as the chat request that it means.

Only what this server can do is in here: text and function tools, no stored conversations. Everything else is refused by
name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.server.protocol import (
    ChatRequest,
    FunctionCall,
    FunctionSpec,
    JsonSchemaFormat,
    Labels,
    Message,
    NamedFunction,
    NamedTool,
    Priority,
    ResponseFormat,
    Salt,
    Seed,
    Strict,
    TextPart,
    Tool,
    ToolCall,
)


class MessageItem(Strict):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    id: str | None = None
    status: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, content: Any) -> Any:
        return Message._text_only(content)


class CallItem(Strict):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class CallOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: str
    id: str | None = None
    status: str | None = None


class FunctionTool(FunctionSpec):
    type: Literal["function"]


class NamedFunctionTool(Strict):
    type: Literal["function"]
    name: str


class TextFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None

    def response_format(self) -> ResponseFormat:
        if self.type != "json_schema":
            return ResponseFormat(type=self.type)
        if self.schema_ is None:
            raise RequestRefused("text.format of type json_schema needs the field schema.")
        return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=self.schema_))


class TextOptions(Strict):
    format: TextFormat | None = None
    verbosity: None = None


class ResponsesRequest(Labels):
    model: str
    input: str | Annotated[list[MessageItem | CallItem | CallOutputItem], Field(min_length=1, max_length=10_000)]
    instructions: str | None = None
    max_output_tokens: StrictInt | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Seed | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=512)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    stream: bool = False
    store: bool | None = None
    truncation: Literal["disabled"] | None = None
    include: Annotated[list[str], Field(max_length=0)] | None = None
    cache_salt: Salt | None = None
    priority: Priority = 0

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_kept(cls, given: Any) -> Any:
        for name in ("previous_response_id", "conversation", "background"):
            if isinstance(given, dict) and given.get(name):
                raise ValueError(
                    f"this server keeps no responses, so {name} is refused; send the whole conversation in input"
                )
        return given

    def chat(self) -> ChatRequest:
        """The same question to /v1/chat/completions."""
        text_format = self.text.format if self.text else None
        return ChatRequest(
            model=self.model,
            messages=self._messages(),
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            seed=self.seed,
            tools=[_tool(tool) for tool in self.tools] if self.tools else None,
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls if self.tools else None,
            response_format=text_format.response_format() if text_format else None,
            cache_salt=self.cache_salt,
            priority=self.priority,
        )

    def _choice(self) -> Literal["none", "auto", "required"] | NamedTool | None:
        choice = self.tool_choice
        if isinstance(choice, NamedFunctionTool):
            return NamedTool(type="function", function=NamedFunction(name=choice.name))
        return choice if self.tools or choice != "auto" else None

    def _messages(self) -> list[Message]:
        first = [Message(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*first, Message(role="user", content=self.input)]
        messages = first
        for item in self.input:
            message = _message(item)
            if isinstance(item, CallItem) and messages and messages[-1].tool_calls:  # calls of one turn
                messages[-1].tool_calls += message.tool_calls or []
            else:
                messages.append(message)
        return messages


def _message(item: MessageItem | CallItem | CallOutputItem) -> Message:
    if isinstance(item, MessageItem):
        return Message(role=item.role, content=item.content)
    if isinstance(item, CallOutputItem):
        return Message(role="tool", content=item.output, tool_call_id=item.call_id)
    call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments))
    return Message(role="assistant", tool_calls=[call])


def _tool(tool: FunctionTool) -> Tool:
    return Tool(type="function", function=FunctionSpec(**tool.model_dump(exclude={"type"}, exclude_none=True)))
