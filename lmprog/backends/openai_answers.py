"""Answers of OpenAI's API, whole or streamed, as the language's results. Knows the objects by their attributes only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lmprog.backends.base import (
    ChoiceScore,
    Constraint,
    FinishReason,
    GenerateCall,
    GenerateResult,
    ScoreResult,
    TokenLogprob,
    Usage,
)
from lmprog.backends.remote import Clock
from lmprog.backends.threads import Report
from lmprog.errors import BackendUnavailable, RequestRefused

_FINISH: Mapping[str, FinishReason] = {"stop": "stop", "length": "length", "content_filter": "abort"}


class Collector:
    """Puts the parts of one answer together."""

    def __init__(self, call: GenerateCall, report: Report) -> None:
        self._call, self._report = call, report
        self._clock = Clock()
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._refusal = ""
        self._finish: str | None = None
        self._matched: str | int | None = None
        self._usage = Usage()

    def chat(self, answer: Any) -> GenerateResult:
        for part in _parts(answer, self._call.wants_deltas):
            self._usage = _usage(part) or self._usage
            for choice in part.choices:
                content = getattr(choice, "delta", None) or getattr(choice, "message", None)
                self._refusal += getattr(content, "refusal", None) or ""
                self._add(getattr(content, "content", None) or "", choice)
                self._logprobs += _chat_logprobs(choice)
        if self._refusal:
            raise RequestRefused(f"The model refuses: {self._refusal}")
        return self._result()

    def completion(self, answer: Any) -> GenerateResult:
        for part in _parts(answer, self._call.wants_deltas):
            self._usage = _usage(part) or self._usage
            for choice in part.choices:
                self._add(choice.text or "", choice)
                self._logprobs += _completion_logprobs(choice)
        return self._result()

    def _add(self, text: str, choice: Any) -> None:
        self._texts.append(text)
        if text and self._call.wants_deltas:
            self._clock.token()
            self._report(text)
        self._finish = getattr(choice, "finish_reason", None) or self._finish
        self._matched = getattr(choice, "stop_reason", None) or self._matched  # not OpenAI's own

    def _result(self) -> GenerateResult:
        if self._finish is None:
            raise BackendUnavailable("The server's answer stops before its end.")
        finish = _FINISH.get(self._finish, "stop")
        return GenerateResult(
            text="".join(self._texts),
            finish_reason=finish,
            matched_stop=self._matched,
            is_complete=self._call.constraint is None or finish == "stop",
            usage=self._usage,
            logprobs=tuple(self._logprobs),
            timing=self._clock.timing(),
        )


def _parts(answer: Any, is_streamed: bool) -> Iterator[Any]:
    """The whole answer as one part, or the parts of a stream, which is closed whatever happens."""
    if not is_streamed:
        yield answer
        return
    try:
        yield from answer
    finally:
        if callable(close := getattr(answer, "close", None)):
            close()


def _usage(part: Any) -> Usage | None:
    usage = getattr(part, "usage", None)
    if usage is None:
        return None
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    return Usage(usage.prompt_tokens or 0, cached, usage.completion_tokens or 0)


def _chat_logprobs(choice: Any) -> Iterator[TokenLogprob]:
    logprobs = getattr(choice, "logprobs", None)
    for each in getattr(logprobs, "content", None) or ():
        top = tuple((other.token, other.logprob) for other in each.top_logprobs or ())
        yield TokenLogprob(each.token, None, each.logprob, top)


def _completion_logprobs(choice: Any) -> Iterator[TokenLogprob]:
    logprobs = getattr(choice, "logprobs", None)
    if logprobs is None or not logprobs.tokens:
        return
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True):
        ranked = sorted((top or {}).items(), key=lambda pair: -pair[1])
        yield TokenLogprob(token, None, logprob, tuple(ranked))


# -- schemas ----------------------------------------------------------------------------------------------------------


def response_format(constraint: Constraint) -> dict[str, Any]:
    """`strict` where the schema keeps to what the API wants of strict ones: closed objects, all members required."""
    schema = json.loads(constraint.source)
    format = {"name": "output", "schema": schema, "strict": _is_strict(schema)}
    return {"type": "json_schema", "json_schema": format}


def _is_strict(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_is_strict, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        members = schema.get("properties", {})
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(members):
            return False
    return all(map(_is_strict, schema.values()))


# -- scores from echoed prompts ---------------------------------------------------------------------------------------


def echo_scores(prompt: str, choices: Sequence[str], answer: Any, clock: Clock) -> ScoreResult:
    """Scores of the choices from echoes of prompt + choice.

    All are scored from the last place up to the end of the prompt where each of them has a border between tokens.
    """
    echoes = [_Echo(each) for each in sorted(answer.choices, key=lambda each: each.index)]
    start = max(set.intersection(*(echo.borders(len(prompt)) for echo in echoes)))
    scores = [
        ChoiceScore(choice, echo.logprobs(start, len(prompt) + len(choice)))
        for choice, echo in zip(choices, echoes, strict=True)
    ]
    return ScoreResult(tuple(scores), _usage(answer) or Usage(), clock.timing())


class _Echo:
    def __init__(self, choice: Any) -> None:
        logprobs = choice.logprobs
        if logprobs is None or not logprobs.text_offset:
            raise RequestRefused(
                "This server does not echo prompts with their log-probabilities, which select needs;",
                hint="use a chat model, whose select asks for one of the choices, or another backend.",
            )
        self._offsets: Sequence[int] = logprobs.text_offset
        self._logprobs: Sequence[float | None] = logprobs.token_logprobs

    def borders(self, end: int) -> set[int]:
        return {0, *(offset for offset in self._offsets if offset <= end)}

    def logprobs(self, start: int, end: int) -> tuple[float, ...]:
        return tuple(_known(self._inside(start, end)))

    def _inside(self, start: int, end: int) -> Iterator[float | None]:
        for offset, logprob in zip(self._offsets, self._logprobs, strict=True):
            if start <= offset < end:
                yield logprob


def _known(logprobs: Iterable[float | None]) -> Iterator[float]:
    for logprob in logprobs:
        if logprob is None:
            raise RequestRefused("The first token of a text has no probability: put some text before the select.")
        yield logprob
