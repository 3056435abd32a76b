"""POST /v1/completions: OpenAI's text completions, with prompt logprobs as evaluation harnesses read them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Completion, Delta, GenerateRequest, TokenLogprob
from lmprog_runtime.server.common import Reply, new_id, now, usage_block
from lmprog_runtime.server.prompts import prompt_ids
from lmprog_runtime.server.protocol import CompletionRequest
from lmprog_runtime.server.session import Session


def sample_seed(seed: int | None, index: int) -> int | None:
    """Seed of the index-th sample of a request: the first has the request's own, the others are derived from it."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


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
        if request.max_tokens < 1 and not request.echo:
            raise RequestRefused(f"max_tokens is {request.max_tokens}; it must be at least 1 (0 only with echo).")

    async def requests(self) -> list[GenerateRequest]:
        prompts = await asyncio.to_thread(prompt_ids, self.runtime, self.request.prompt)
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

    async def answer(self) -> Reply:
        requests = await self.requests()
        results: list[Completion] = await self.session.run(requests)
        chosen = self._best(results)
        choices = [self._choice(index, requests[at], results[at]) for index, at in enumerate(chosen)]
        return Reply({**self._head(), "choices": choices, "usage": usage_block(results, self.samples)})

    def _best(self, results: list[Completion]) -> list[int]:
        """Indices of the n best samples of each prompt by mean logprob, in order of their making when n = best_of."""
        kept: list[int] = []
        for start in range(0, len(results), self.samples):
            indices = list(range(start, start + self.samples))
            if self.samples > self.request.n:
                indices.sort(key=lambda at: -_mean_logprob(results[at]))
            kept += indices[: self.request.n]
        return kept

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        requests = await self.requests()
        results: dict[int, Completion] = {}
        async with self.session.start(requests) as runs:
            if self.request.echo:
                for index, request in enumerate(requests):
                    yield self._chunk(index, self._text_of(list(request.token_ids)), None, None)
            async for index, event in runs.events():
                if isinstance(event, Delta):
                    yield self._chunk(index, event.text, self._logprobs([], list(event.logprobs)), None)
                elif isinstance(event, Completion):
                    results[index] = event
                    yield self._chunk(index, "", None, event.finish_reason)
        if self.request.stream_options and self.request.stream_options.include_usage:
            ordered = [results[index] for index in range(len(requests))]
            yield {**self._head(), "choices": [], "usage": usage_block(ordered, self.samples)}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.request.model}

    def _chunk(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head(), "choices": [choice]}

    def _choice(self, index: int, request: GenerateRequest, result: Completion) -> dict[str, Any]:
        generated = result.text if self.request.max_tokens else ""
        entries = list(result.logprobs) if self.request.max_tokens else []
        echoed = self._text_of(list(request.token_ids)) if self.request.echo else ""
        return {
            "index": index,
            "text": echoed + generated,
            "logprobs": self._logprobs(list(result.prompt_logprobs), entries),
            "finish_reason": result.finish_reason,
            "stop_reason": result.matched_stop,
        }

    def _text_of(self, ids: list[int]) -> str:
        return self.runtime.tokenizer.decode_bytes(ids).decode(errors="replace")

    def _logprobs(self, prompt: list[TokenLogprob], generated: list[TokenLogprob]) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        entries = prompt + generated
        texts = [self._text_of([entry.token_id]) for entry in entries]
        offsets = [0]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        return {
            "tokens": texts,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets[:-1],
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
