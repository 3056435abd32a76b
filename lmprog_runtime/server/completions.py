"""POST /v1/completions: OpenAI's text completions, with prompt logprobs as evaluation harnesses read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Completion, Delta, GenerateRequest, TokenLogprob
from lmprog_runtime.server.common import TextOffsets, new_id, now, sample_seed, usage_block
from lmprog_runtime.server.prompts import prompt_ids
from lmprog_runtime.server.protocol import MOST_PROMPTS, CompletionRequest
from lmprog_runtime.server.session import Session


class CompletionCall:
    """One request to /v1/completions and how its answer is put together."""

    def __init__(self, session: Session, request: CompletionRequest) -> None:
        self.session, self.runtime, self.request = session, session.runtime, request
        self.id, self.created = new_id("cmpl"), now()
        self.samples = request.best_of or request.n
        self._check()

    def _check(self) -> None:
        request = self.request
        if request.suffix is not None:
            raise RequestRefused("suffix is not supported: this server has no fill-in-the-middle; leave it out.")
        if self.samples < request.n:
            raise RequestRefused(f"best_of ({self.samples}) is below n ({request.n}).")
        if request.stream and self.samples > request.n:
            raise RequestRefused("best_of above n cannot be streamed: which answer is best is known at the end only.")
        if request.max_tokens < (0 if request.echo else 1):
            raise RequestRefused(f"max_tokens is {request.max_tokens}; it must be at least 1 (0 only with echo).")
        if request.stream and request.max_tokens == 0:
            raise RequestRefused("max_tokens 0 cannot be streamed; ask for the echo in one answer.")

    async def requests(self) -> list[GenerateRequest]:
        prompts = await asyncio.to_thread(prompt_ids, self.runtime, self.request.prompt)
        if len(prompts) * self.samples > MOST_PROMPTS:
            raise RequestRefused(f"{len(prompts)} prompts times {self.samples} samples are above {MOST_PROMPTS}.")
        return [self._engine_request(ids, index) for ids in prompts for index in range(self.samples)]

    def _engine_request(self, ids: list[int], sample: int) -> GenerateRequest:
        request = self.request
        wants_logprobs = request.logprobs is not None or self.samples > request.n
        params = request.params(
            max_tokens=max(1, request.max_tokens),
            logprobs=wants_logprobs,
            top_logprobs=max(1, request.logprobs) if request.logprobs is not None else 0,
            prompt_logprobs_start=0 if request.echo and request.logprobs is not None else None,
        )
        params = replace(params, seed=sample_seed(request.seed, sample))
        return GenerateRequest(
            ids, params, constraint=request.constraint(), salt=request.cache_salt, priority=request.priority
        )

    async def answer(self) -> dict[str, Any]:
        requests = await self.requests()
        results: list[Completion] = await self.session.run(requests)
        chosen = self._best(results)
        choices = [self._choice(index, requests[at], results[at]) for index, at in enumerate(chosen)]
        return {**self._head(), "choices": choices, "usage": self._usage(results)}

    def _best(self, results: list[Completion]) -> list[int]:
        """Indices of the n best samples of each prompt by mean logprob, in order of their making when n = best_of."""
        kept: list[int] = []
        for start in range(0, len(results), self.samples):
            indices = list(range(start, start + self.samples))
            if self.samples > self.request.n:
                indices.sort(key=lambda at: -_mean_logprob(results[at]))
            kept += indices[: self.request.n]
        return kept

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        requests = await self.requests()
        offsets = [TextOffsets(self.runtime.tokenizer) for _ in requests]
        results: dict[int, Completion] = {}
        async with self.session.start(requests) as runs:
            async for index, event in runs.events():
                if self.request.echo and not offsets[index].has_begun:
                    yield self._echo_chunk(index, requests[index], offsets[index])
                if isinstance(event, Delta):
                    logprobs = self._logprobs(event.logprobs, offsets[index])
                    yield self._chunk(index, event.text, logprobs, None)
                elif isinstance(event, Completion):
                    results[index] = event
                    yield self._chunk(index, "", None, event.finish_reason)
        if self.request.stream_options and self.request.stream_options.include_usage:
            ordered = [results[index] for index in range(len(requests))]
            yield {**self._head(), "choices": [], "usage": self._usage(ordered)}

    def _usage(self, results: list[Completion]) -> dict[str, Any]:
        return usage_block(results, self.samples, by_tier=self.request.return_cached_tokens_details)

    def _echo_chunk(self, index: int, request: GenerateRequest, offsets: TextOffsets) -> dict[str, Any]:
        offsets.push(request.token_ids)
        return self._chunk(index, self._text_of(request.token_ids), None, None)

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.request.model}

    def _chunk(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head(), "choices": [choice]}

    def _choice(self, index: int, request: GenerateRequest, result: Completion) -> dict[str, Any]:
        is_asked = self.request.max_tokens > 0
        echoed = self._text_of(request.token_ids) if self.request.echo else ""
        entries = [*result.prompt_logprobs, *(result.logprobs if is_asked else ())]
        return {
            "index": index,
            "text": echoed + (result.text if is_asked else ""),
            "logprobs": self._logprobs(entries, TextOffsets(self.runtime.tokenizer)),
            "finish_reason": result.finish_reason if is_asked else "length",
            "stop_reason": result.matched_stop if is_asked else None,
        }

    def _text_of(self, ids: Sequence[int]) -> str:
        return self.runtime.tokenizer.decode_bytes(ids).decode(errors="replace")

    def _logprobs(self, entries: Sequence[TokenLogprob], offsets: TextOffsets) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        return {
            "tokens": [self._text_of([entry.token_id]) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets.push([entry.token_id for entry in entries]),
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float] | None:
        """Likeliest tokens by text, the chosen one always among them with the very same number. Ids that share one text
        (parts of characters) would overwrite each other, so the later ones go by their id."""
        if entry.logprob is None:
            return None
        top: dict[str, float] = {self._text_of([entry.token_id]): entry.logprob}
        for token_id, logprob in entry.top[: self.request.logprobs]:
            if token_id != entry.token_id:
                text = self._text_of([token_id])
                top[f"token_id:{token_id}" if text in top else text] = logprob
        return top


def _mean_logprob(result: Completion) -> float:
    values = [entry.logprob for entry in result.logprobs if entry.logprob is not None]
    return sum(values) / len(values) if values else 0.0
