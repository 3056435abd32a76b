"""Requests of the HTTP API as they come over the wire.

An unknown field is refused by name, a number out of range with its limits; fields of the OpenAI API that cannot change
an answer here (`user`, `metadata`, ...) are accepted as labels.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictInt,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Constraint, SamplingParams

MOST_STOPS, MOST_CHOICES, MOST_N, MOST_PROMPTS = 64, 5000, 128, 4096

Seed = Annotated[StrictInt, Field(ge=-(2**63), le=2**64 - 1)]
Priority = Annotated[StrictInt, Field(ge=-(2**31), le=2**31 - 1)]
Salt = Annotated[str, Field(max_length=1024)]
Ids = list[StrictInt]


def _leave_lists_at_their_first_mistake(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, (list, tuple)):
        for part in schema:
            _leave_lists_at_their_first_mistake(part)


class Strict(BaseModel):
    """Refuses unknown fields. A field that is null counts as not given, as clients in other languages send it.

    Of many mistakes few are noted: a body of 16 MB has room for millions, and noting each takes minutes and gigabytes.
    """

    model_config = ConfigDict(extra="forbid", strict=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _leave_lists_at_their_first_mistake(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        """And all unknown fields but the first, which is the one that is refused."""
        if not isinstance(given, dict):
            return given
        known = {field.alias or name for name, field in cls.model_fields.items()}
        said = {name: value for name, value in given.items() if value is not None}
        unknown = next((name for name in said if name not in known), None)
        return {name: value for name, value in said.items() if name in known or name == unknown}


def _values_are(kinds: tuple[type, ...], what: str) -> BeforeValidator:
    """Refuses an object at its first value of another kind."""

    def check(given: Any) -> Any:
        for name, value in given.items() if isinstance(given, dict) else ():
            if type(value) not in kinds:
                raise ValueError(f"the value of {name[:64]!r} must be {what}")
        return given

    return BeforeValidator(check)


class Sampling(Strict):
    """Sampling fields that all generating routes share."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: StrictInt | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float], _values_are((int, float), "a number")] | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=MOST_STOPS)] | None = None
    stop_regex: str | None = None
    min_tokens: StrictInt | None = None
    ignore_eos: bool | None = None
    finish: Literal["close"] | None = None
    seed: Seed | None = None

    def params(self, **more: Any) -> SamplingParams:
        """The engine's parameters; `more` holds what differs between routes (max_tokens, logprobs)."""
        names = Sampling.model_fields
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if "logit_bias" in given:
            given["logit_bias"] = _token_biases(given["logit_bias"])
        if "stop" in given:
            given["stop"] = (given["stop"],) if isinstance(given["stop"], str) else tuple(given["stop"])
        if "stop_token_ids" in given:
            given["stop_token_ids"] = tuple(given["stop_token_ids"])
        return SamplingParams(**given, **{key: value for key, value in more.items() if value is not None})


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise RequestRefused(f"logit_bias has the key {key!r}; its keys are token ids.")
    return {int(key): value for key, value in biases.items()}


class JsonSchemaFormat(Strict):
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class Structure(Strict):
    """What may follow a trigger: `begin`, JSON of the schema, `end`."""

    begin: str
    schema_: dict[str, Any] | bool = Field(alias="schema")
    end: str


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: Annotated[list[Structure], Field(max_length=512)] | None = None  # of a structural tag
    triggers: Annotated[list[str], Field(max_length=512)] | None = None

    @model_validator(mode="after")
    def _has_its_fields_only(self) -> ResponseFormat:
        names = {"json_schema": {"json_schema"}, "structural_tag": {"structures", "triggers"}}.get(self.type, set())
        given = {name for name in ("json_schema", "structures", "triggers") if getattr(self, name) is not None}
        if given != names:
            wrong = ", ".join(sorted(given ^ names))
            raise ValueError(
                f"type {self.type} takes {' and '.join(sorted(names)) or 'no other field'}; see to {wrong}"
            )
        return self


class Constrained(Strict):
    """The ways to say what an answer must match; at most one of them."""

    response_format: ResponseFormat | None = None
    regex: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    choices: Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    whitespace: str | None = None

    def constraint(self) -> Constraint | None:
        """The engine's constraint, or None. RequestRefused when two are given."""
        found = [part for part in (self._from_format(), *self._direct()) if part is not None]
        if len(found) > 1:
            kinds = " and ".join(kind for kind, _ in found)
            raise RequestRefused(f"{kinds} were both given; an answer can follow one constraint only.")
        if not found:
            return None
        kind, source = found[0]
        _check_whole_characters(self.choices if kind == "choices" and self.choices else [source], kind)
        return Constraint(kind, source, self.whitespace or "compact")  # type: ignore[arg-type]

    def _direct(self) -> list[tuple[str, str] | None]:
        schema = self.json_schema
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return [
            ("regex", self.regex) if self.regex is not None else None,
            ("grammar", self.grammar) if self.grammar is not None else None,
            ("json_schema", text) if schema is not None else None,
            ("choices", json.dumps(self.choices)) if self.choices is not None else None,
        ]

    def _from_format(self) -> tuple[str, str] | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return "json_schema", '{"type":"object"}'
        if wanted.type == "structural_tag":
            structures = [structure.model_dump(by_alias=True) for structure in wanted.structures or []]
            texts = [text for structure in wanted.structures or [] for text in (structure.begin, structure.end)]
            _check_whole_characters([*texts, *(wanted.triggers or [])], "response_format")
            return "structural_tag", json.dumps({"structures": structures, "triggers": wanted.triggers})
        assert wanted.json_schema is not None
        return "json_schema", json.dumps(wanted.json_schema.schema_)


def _check_whole_characters(texts: list[str], name: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestRefused(
                f"{name} has half of a surrogate pair at character {error.start}; send whole characters."
            ) from None


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class Labels(Strict):
    """Fields of the OpenAI API that cannot change an answer of this server; kept for its clients' sake."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class Common(Sampling, Constrained, Labels):
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_N)] = 1
    cache_salt: Salt | None = None
    priority: Priority = 0
    return_cached_tokens_details: bool = False


Prompt = str | Ids | Annotated[list[str] | list[Ids], Field(max_length=MOST_PROMPTS)]


class CompletionRequest(Common):
    prompt: Prompt
    max_tokens: StrictInt = 16
    echo: bool = False
    logprobs: Annotated[StrictInt, Field(ge=0, le=100)] | None = None
    best_of: Annotated[StrictInt, Field(ge=1, le=MOST_N)] | None = None
    suffix: str | None = None


class TextPart(Strict):
    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class FunctionCall(Strict):
    name: str
    arguments: str


class ToolCall(Strict):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    annotations: list[Any] | None = None  # clients send back what they got; there are none here
    refusal: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_only(cls, content: Any) -> Any:
        for index, part in enumerate(content if isinstance(content, list) else []):
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in ("text", "input_text", "output_text"):  # it may be of any type, hashable or not
                raise ValueError(f"part {index} is of type {kind!r}; this server reads text only")
        return content


class FunctionSpec(Strict):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: FunctionSpec


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class ChatRequest(Common):
    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    logprobs: bool = False
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=512)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    separate_reasoning: bool = False
    chat_template_kwargs: (
        Annotated[
            dict[str, StrictBool | StrictInt | float | str],
            _values_are((bool, int, float, str), "a number, a string, true or false"),
        ]
        | None
    ) = None
