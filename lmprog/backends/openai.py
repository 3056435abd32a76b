"""OpenAI's API, and servers that speak it, through the official `openai` package (extra `openai`).

    OpenAI("gpt-4.1-mini")                                                    a chat model
    OpenAI("my-model", base_url="http://127.0.0.1:8000/v1", api_key="none",   another server
           extra_parameters=["top_k", "min_p"])                               what it takes beyond OpenAI's parameters
    OpenAI("my-model", is_chat_model=False, base_url=...)                     text completion

Chat models take `gen` at the beginning of the assistant's turn. `select` makes the API answer with one of the choices
and has no probabilities. JSON schemas are strict where all members are required, as the API wants it; else the model
may break them, and reading the value says so. Completion models take any text, no turns and no schemas; `select` asks
for the echoed prompt with its log-probabilities, which not every server gives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lmprog.backends.base import (
    ChoiceScore,
    GenerateCall,
    GenerateResult,
    PendingCall,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
)
from lmprog.backends.openai_answers import Collector, echo_scores, response_format
from lmprog.backends.remote import ChatBackend, Clock, Message, client_package
from lmprog.backends.threads import Report
from lmprog.errors import InvalidArgument, RequestRefused, UnsupportedParameter
from lmprog.sampling import OF_ONE_CALL, Sampling

_SAME = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
_SAMPLING = frozenset((*_SAME, "max_tokens", "logit_bias", "stop", "logprobs", "top_logprobs"))
_EXTRA = OF_ONE_CALL - _SAMPLING
_CHAT_FEATURES = frozenset(("json_schema", "roles", "score", "stream"))
_COMPLETION_FEATURES = frozenset(("score", "choice_logprobs", "stream"))


class OpenAI(ChatBackend):
    """model_name: as the API knows it. is_chat_model: by default all but `...-instruct`, `davinci-002`, `babbage-002`.

    is_azure: use the package's Azure client. extra_parameters: sampling parameters that the server takes beyond
    OpenAI's own, such as top_k, min_p or repetition_penalty; they are sent by these names. max_concurrency: calls under
    way at a time, each on a thread. client_options: for the client of the package (api_key, base_url, timeout, ...).
    Raises MissingDependency, and InvalidArgument when the client refuses its options.
    """

    name = "openai"

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        *,
        is_azure: bool = False,
        extra_parameters: Collection[str] = (),
        max_concurrency: int = 64,
        **client_options: Any,
    ) -> None:
        package = client_package("openai")
        super().__init__(model_name, max_concurrency)
        self.is_chat_model = _is_chat(model_name) if is_chat_model is None else is_chat_model
        self._extra = _checked_extra(extra_parameters)
        kind = package.AzureOpenAI if is_azure else package.OpenAI
        try:
            self._client = kind(**{"max_retries": 0, **client_options})
        except (package.OpenAIError, TypeError) as error:
            raise InvalidArgument(f"The openai client refuses its options: {error}") from error
        self._limit = "max_completion_tokens" if "api.openai.com" in str(self._client.base_url) else "max_tokens"

    def open_stream(self) -> Stream:
        return super().open_stream() if self.is_chat_model else CompletionStream(self)

    def supports(self, parameter: str) -> bool:
        features = _CHAT_FEATURES if self.is_chat_model else _COMPLETION_FEATURES
        return parameter in _SAMPLING or parameter in features or parameter in self._extra

    def close(self) -> None:
        super().close()
        self._client.close()

    # -- calls ----------------------------------------------------------------------------------------------------

    def chat(self, messages: Sequence[Message], call: GenerateCall, report: Report) -> GenerateResult:
        body = {**chat_parameters(call, self._limit), **self._beyond(call.sampling)}
        collector = Collector(call, report)
        return collector.chat(self._client.chat.completions.create(model=self.model_name, messages=messages, **body))

    def complete(self, prompt: str, call: GenerateCall, report: Report) -> GenerateResult:
        body = {**sampling_parameters(call, "max_tokens"), **self._beyond(call.sampling)}
        if call.sampling.logprobs or call.sampling.top_logprobs:
            body["logprobs"] = call.sampling.top_logprobs or 0
        collector = Collector(call, report)
        return collector.completion(self._client.completions.create(model=self.model_name, prompt=prompt, **body))

    def score(self, prompt: str, choices: Sequence[str]) -> ScoreResult:
        clock = Clock()
        answer = self._client.completions.create(
            model=self.model_name,
            prompt=[prompt + choice for choice in choices],
            max_tokens=0,
            echo=True,
            logprobs=0,
        )
        return echo_scores(prompt, choices, answer, clock)

    def _beyond(self, sampling: Sampling) -> dict[str, Any]:
        given = sampling.given()
        extra = {name: _plain(given[name]) for name in self._extra if name in given}
        return {"extra_body": extra} if extra else {}


def chat_parameters(call: GenerateCall, limit: str) -> dict[str, Any]:
    """All that a chat call says besides its messages, by OpenAI's names."""
    body = sampling_parameters(call, limit)
    if call.sampling.logprobs or call.sampling.top_logprobs:
        body["logprobs"] = True
    if call.sampling.top_logprobs:
        body["top_logprobs"] = call.sampling.top_logprobs
    if call.constraint is not None:
        body["response_format"] = response_format(call.constraint)
    return body


def sampling_parameters(call: GenerateCall, limit: str) -> dict[str, Any]:
    """Sampling parameters by OpenAI's names, but log-probabilities, which chats and completions ask for differently."""
    given = call.sampling.given()
    body = {name: given[name] for name in _SAME if name in given}
    if "max_tokens" in given:
        body[limit] = given["max_tokens"]
    if "stop" in given:
        body["stop"] = list(given["stop"])
    if "logit_bias" in given:
        body["logit_bias"] = {str(token): bias for token, bias in given["logit_bias"].items()}
    if call.wants_deltas:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _is_chat(model_name: str) -> bool:
    return not model_name.endswith("-instruct") and model_name not in ("davinci-002", "babbage-002")


def _checked_extra(names: Collection[str]) -> frozenset[str]:
    for name in names:
        if name not in _EXTRA:
            raise InvalidArgument(f"extra_parameters has {name!r};", hint=f"it may have {', '.join(sorted(_EXTRA))}.")
    return frozenset(names)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class CompletionStream(Stream):
    """Plain text."""

    def __init__(self, backend: OpenAI, text: str = "") -> None:
        self._backend, self._text = backend, text

    def append_text(self, text: str) -> None:
        self._text += text

    def begin_role(self, role: str) -> None:
        raise RequestRefused(f"{self._backend.model_name} is a completion model: it has no turns ({role}).")

    def end_role(self) -> None:
        raise RequestRefused(f"{self._backend.model_name} is a completion model: it has no turns.")

    def append_special(self, token: str) -> None:
        raise RequestRefused(f"{token!r} cannot be sent: this API takes text only.")

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        prompt = self._text
        return self._backend.start(
            sink,
            lambda report: self._backend.complete(prompt, call, report),
            lambda result: self.append_text(result.text),
        )

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        if call.unconditional:
            raise UnsupportedParameter(
                f"The {self._backend.name} backend has no probabilities of texts without a prompt;",
                hint="use another choices_method than unconditional_likelihood_normalized.",
            )
        prompt = self._text
        return self._backend.start(sink, lambda _: self._backend.score(prompt, call.choices), lambda _: None)

    def append_choice(self, choice: ChoiceScore) -> None:
        self.append_text(choice.text)

    def fork(self, count: int) -> list[Stream]:
        return [CompletionStream(self._backend, self._text) for _ in range(count)]

    def close(self) -> None:
        return None
