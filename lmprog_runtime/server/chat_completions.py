"""POST /v1/chat/completions: OpenAI's chat, with tools, structured outputs, streaming and the reasoning split."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Completion, Delta, GenerateRequest, TokenLogprob
from lmprog_runtime.server.common import new_id, now, sample_seed, token_text, usage_block
from lmprog_runtime.server.prompts import chat_ids, opens_reasoning
from lmprog_runtime.server.protocol import ChatRequest
from lmprog_runtime.server.session import Session
from lmprog_runtime.server.splitting import Markers, Piece, Splitter
from lmprog_runtime.server.tool_formats import format_of
from lmprog_runtime.server.tools import ToolPlan, tool_plan


class ChatCall:
    """One request to /v1/chat/completions and how its answer is put together."""

    def __init__(self, session: Session, request: ChatRequest) -> None:
        self.session, self.runtime, self.request = session, session.runtime, request
        self.id, self.created = new_id("chatcmpl"), now()
        self.plan: ToolPlan = tool_plan(request, format_of(self.runtime.files.chat_template))
        self._starts_in_reasoning = False
        self._check()

    def _check(self) -> None:
        request = self.request
        if request.max_tokens is not None and request.max_completion_tokens is not None:
            raise RequestRefused("max_tokens and max_completion_tokens were both given; keep max_completion_tokens.")
        if request.top_logprobs is not None and not request.logprobs:
            raise RequestRefused("top_logprobs needs logprobs to be true.")
        if request.continue_final_message and request.messages[-1].role != "assistant":
            raise RequestRefused("continue_final_message needs the last message to be the assistant's.")

    async def requests(self) -> list[GenerateRequest]:
        request = self.request
        ids = await asyncio.to_thread(
            chat_ids,
            self.runtime,
            request.messages,
            tools=request.tools if self.plan.is_shown else None,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            variables=request.chat_template_kwargs,
        )
        self._starts_in_reasoning = request.separate_reasoning and opens_reasoning(self.runtime, ids)
        limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
        params = request.params(max_tokens=limit, logprobs=request.logprobs, top_logprobs=request.top_logprobs)
        constraint = self.plan.constraint or self.plan.tag or request.constraint()
        return [
            GenerateRequest(
                ids,
                replace(params, seed=sample_seed(request.seed, index)),
                constraint=constraint,
                salt=request.cache_salt,
                priority=request.priority,
            )
            for index in range(request.n)
        ]

    async def answer(self) -> dict[str, Any]:
        requests = await self.requests()
        results: list[Completion] = await self.session.run(requests)
        choices = [self._choice(index, result) for index, result in enumerate(results)]
        body = {"id": self.id, "object": "chat.completion", "created": self.created, "model": self.request.model}
        return {**body, "choices": choices, "usage": self._usage(results)}

    def splitter(self) -> Splitter:
        """Cuts one sample's text into content, reasoning and calls."""
        return Splitter(self.plan, reasoning=self.request.separate_reasoning, starts_inside=self._starts_in_reasoning)

    def pieces(self, result: Completion) -> list[Piece]:
        """A whole answer in pieces."""
        splitter = self.splitter()
        return [*splitter.push(self.markers().push(result.text, result.token_ids)), *splitter.end()]

    def markers(self) -> Markers:
        return Markers(self.runtime.tokenizer)

    def _choice(self, index: int, result: Completion) -> dict[str, Any]:
        message = _message(self.pieces(result))
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(list(result.logprobs)),
            "finish_reason": _finish_reason(result, has_calls="tool_calls" in message),
            "stop_reason": result.matched_stop,
        }

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        requests = await self.requests()
        splitters, markers = [self.splitter() for _ in requests], [self.markers() for _ in requests]
        results: dict[int, Completion] = {}
        started: set[int] = set()
        async with self.session.start(requests) as runs:
            async for index, event in runs.events():
                if index not in started:  # not before the engine has taken the request
                    started.add(index)
                    yield self._chunk(index, {"role": "assistant", "content": ""})
                if isinstance(event, Delta):
                    for chunk in self._delta_chunks(
                        index, splitters[index].push(markers[index].push(event.text, event.token_ids)), event
                    ):
                        yield chunk
                elif isinstance(event, Completion):
                    results[index] = event
                    for chunk in self._last_chunks(index, splitters[index], event):
                        yield chunk
        if self.request.stream_options and self.request.stream_options.include_usage:
            usage = self._usage([results[index] for index in range(len(requests))])
            yield {**self._chunk(0, {}), "choices": [], "usage": usage}

    def _usage(self, results: list[Completion]) -> dict[str, Any]:
        return usage_block(results, self.request.n, by_tier=self.request.return_cached_tokens_details)

    def _last_chunks(self, index: int, splitter: Splitter, result: Completion) -> list[dict[str, Any]]:
        left = [self._chunk(index, piece.delta()) for piece in splitter.end()]
        return [*left, self._chunk(index, {}, reason=_finish_reason(result, has_calls=splitter.has_calls))]

    def _delta_chunks(self, index: int, pieces: list[Piece], event: Delta) -> list[dict[str, Any]]:
        """One chunk per piece; the event's logprobs travel with the first."""
        logprobs = self._logprobs(list(event.logprobs))
        if not pieces and logprobs:
            return [self._chunk(index, {}, logprobs=logprobs)]
        return [self._chunk(index, piece.delta(), logprobs=None if at else logprobs) for at, piece in enumerate(pieces)]

    def _chunk(
        self, index: int, delta: dict[str, Any], *, reason: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        head = {"id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.request.model}
        return {**head, "choices": [choice]}

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        return {"content": [self._token_entry(entry) for entry in entries]}

    def _token_entry(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in entry.top[: self.request.top_logprobs or 0]]
        return {**self._token(entry.token_id, entry.logprob), "top_logprobs": top}

    def _token(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        data = self.runtime.tokenizer.decode_bytes([token_id])
        return {"token": token_text(self.runtime.tokenizer, token_id), "logprob": logprob, "bytes": list(data)}


def _message(pieces: list[Piece]) -> dict[str, Any]:
    content = "".join(piece.text for piece in pieces if piece.kind == "content")
    reasoning = "".join(piece.text for piece in pieces if piece.kind == "reasoning")
    calls = _calls(pieces)
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _calls(pieces: list[Piece]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if piece.kind != "call":
            continue
        call = calls.setdefault(
            piece.call_index,
            {"id": piece.call_id, "type": "function", "function": {"name": piece.name, "arguments": ""}},
        )
        call["function"]["arguments"] += piece.text
    return [calls[index] for index in sorted(calls)]


def _finish_reason(result: Completion, *, has_calls: bool) -> str:
    return "tool_calls" if has_calls and result.finish_reason == "stop" else result.finish_reason
