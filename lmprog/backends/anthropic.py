"""Anthropic's API through the official `anthropic` package (extra `anthropic`).

    Anthropic("claude-sonnet-4-5")                      the key comes from ANTHROPIC_API_KEY, or api_key=...

Turns are system (at the beginning), user and assistant. Text of the program before a `gen` in the assistant's turn is
sent as its beginning, which older models go on with and newer ones refuse. `select` makes the API answer with one of
the choices, through structured outputs, and has no probabilities.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmprog.backends.base import FinishReason, GenerateCall, GenerateResult, Usage
from lmprog.backends.remote import ChatBackend, Clock, Message, client_package
from lmprog.backends.threads import Report
from lmprog.errors import BackendUnavailable, InvalidArgument, RequestRefused
from lmprog.sampling import Sampling

_SUPPORTED = frozenset(
    ("max_tokens", "temperature", "top_p", "top_k", "stop", "json_schema", "roles", "score", "stream")
)
_IN_BODY = ("temperature", "top_p", "top_k")
_FINISH: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class Anthropic(ChatBackend):
    """model_name: as the API knows it. max_concurrency: calls under way at a time, each on a thread.

    client_options: for the client of the package (api_key, base_url, timeout, ...). The API wants max_tokens; where a
    program says nothing it is 1024. Raises MissingDependency, and InvalidArgument when the client refuses its options.
    """

    name = "anthropic"
    defaults = Sampling(max_tokens=1024)
    continues_turns = True

    def __init__(self, model_name: str, *, max_concurrency: int = 64, **client_options: Any) -> None:
        package = client_package("anthropic")
        super().__init__(model_name, max_concurrency)
        try:
            self._client = package.Anthropic(**{"max_retries": 0, **client_options})
        except (package.AnthropicError, TypeError) as error:
            raise InvalidArgument(f"The anthropic client refuses its options: {error}") from error

    def supports(self, parameter: str) -> bool:
        return parameter in _SUPPORTED

    def close(self) -> None:
        super().close()
        self._client.close()

    def chat(self, messages: Sequence[Message], call: GenerateCall, report: Report) -> GenerateResult:
        body = _parameters(messages, call)
        clock = Clock()
        answer = self._client.messages.create(model=self.model_name, **body)
        if not call.wants_deltas:
            return _result(answer, "".join(_texts(answer)), call, clock)
        with answer:
            return _read_stream(answer, call, report, clock)


def _parameters(messages: Sequence[Message], call: GenerateCall) -> dict[str, Any]:
    given = call.sampling.given()
    body: dict[str, Any] = {"max_tokens": given["max_tokens"], **_split(messages)}
    if "stop" in given:
        body["stop_sequences"] = list(given["stop"])
    if call.wants_deltas:
        body["stream"] = True
    # In the body, not as arguments: which of them the client knows depends on its version; the API decides.
    beside: dict[str, Any] = {name: given[name] for name in _IN_BODY if name in given}
    if call.constraint is not None:
        beside["output_config"] = {"format": {"type": "json_schema", "schema": json.loads(call.constraint.source)}}
    return {**body, "extra_body": beside} if beside else body


def _split(messages: Sequence[Message]) -> dict[str, Any]:
    """The API takes the system's turn apart from the others, and wants one of those."""
    system = [each["content"] for each in messages if each["role"] == "system"]
    others = [each for each in messages if each["role"] != "system"]
    if len(system) > 1 or (system and messages[0]["role"] != "system"):
        raise RequestRefused("Anthropic's API takes one system turn, at the beginning; write the others as user turns.")
    return {"system": system[0], "messages": others} if system else {"messages": others}


def _read_stream(events: Any, call: GenerateCall, report: Report, clock: Clock) -> GenerateResult:
    """The message of the first event grows by what the others say."""
    message: Any = None
    texts: list[str] = []
    for event in events:
        if event.type == "message_start":
            message = event.message
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            clock.token()
            texts.append(event.delta.text)
            report(event.delta.text)
        elif event.type == "message_delta":
            message.stop_reason, message.stop_sequence = event.delta.stop_reason, event.delta.stop_sequence
            message.usage.output_tokens = event.usage.output_tokens
    return _result(message, "".join(texts), call, clock)


def _texts(message: Any) -> Iterator[str]:
    for block in message.content:
        if block.type == "text":
            yield block.text


def _result(message: Any, text: str, call: GenerateCall, clock: Clock) -> GenerateResult:
    if message is None or message.stop_reason is None:
        raise BackendUnavailable("The server's answer stops before its end.")
    if message.stop_reason == "refusal":
        raise RequestRefused(f"The model refuses: {text or 'it gives no reason.'}")
    finish = _FINISH.get(message.stop_reason, "abort")
    return GenerateResult(
        text=text,
        finish_reason=finish,
        matched_stop=message.stop_sequence,
        is_complete=call.constraint is None or finish == "stop",
        usage=_usage(message.usage),
        timing=clock.timing(),
    )


def _usage(usage: Any) -> Usage:
    """`input_tokens` leaves out what was read from, or written to, the API's cache."""
    cached = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    return Usage(usage.input_tokens + cached + written, cached, usage.output_tokens)
