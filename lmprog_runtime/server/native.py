"""The native API: /generate, /select, /fork. `RuntimeEndpoint` of the language speaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, StrictInt

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.request import Completion, Delta, GenerateRequest, ScoreRequest, ScoreResult
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server import segments
from lmprog_runtime.server.common import sample_seed
from lmprog_runtime.server.metrics import cached_by_tier
from lmprog_runtime.server.prompts import prompt_ids
from lmprog_runtime.server.protocol import (
    MOST_CHOICES,
    MOST_N,
    MOST_PROMPTS,
    Constrained,
    Ids,
    Priority,
    Prompt,
    Salt,
    Sampling,
    Strict,
)
from lmprog_runtime.server.segments import Segments
from lmprog_runtime.server.session import Session
from lmprog_runtime.server.streams import StreamId


class NativeSampling(Sampling, Constrained):
    max_new_tokens: StrictInt | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_N)] = 1


class GenerateBody(Strict):
    text: str | Annotated[list[str], Field(max_length=MOST_PROMPTS)] | None = None
    input_ids: Ids | Annotated[list[Ids], Field(max_length=MOST_PROMPTS)] | None = None
    segments: Segments | None = None  # pieces of a program's stream, after input_ids
    heal: bool | None = None  # for segments: whether an end of the text is left to the model to finish
    sampling_params: NativeSampling = Field(default_factory=NativeSampling)
    return_logprob: bool = False
    top_logprobs_num: Annotated[StrictInt, Field(ge=0, le=100)] = 0
    logprob_start_len: StrictInt | None = None
    stream: bool = False
    cache_salt: Salt | None = None
    priority: Priority = 0
    use_cache: bool = True
    stream_id: StreamId | None = None  # holds the prompt and the answer in the cache until the stream's next request

    def prompts(self) -> Prompt:
        given = self.text if self.text is not None else self.input_ids
        if given is None or (self.text is not None and self.input_ids is not None):
            raise RequestRefused("Give either text or input_ids.")
        return given


class SelectBody(Strict):
    input_ids: Ids | None = None
    text: str | None = None
    segments: Segments | None = None
    choices: Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    choice_ids: Annotated[list[Ids], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    unconditional: bool = False  # also score each choice without the prompt
    stream_id: StreamId | None = None
    cache_salt: Salt | None = None
    priority: Priority = 0
    use_cache: bool = True


class ForkBody(Strict):
    text: str | None = None
    input_ids: Ids | None = None
    suffixes: Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
    sampling_params: NativeSampling = Field(default_factory=NativeSampling)
    cache_salt: Salt | None = None
    priority: Priority = 0


# -- /generate ---------------------------------------------------------------------------------------------------------


class GenerateCall:
    """One request to /generate: one answer, or a list when the prompt was a list or n is above 1."""

    def __init__(self, session: Session, body: GenerateBody) -> None:
        self.session, self.runtime, self.body = session, session.runtime, body
        self._is_stream = body.segments is not None
        if self._is_stream and (body.text is not None or body.sampling_params.n > 1 or _is_batch(body.input_ids)):
            raise RequestRefused("segments come after one list of input_ids, without text, batches and n above 1.")
        prompts = [] if self._is_stream else body.prompts()
        self._is_single = self._is_stream or (not _is_batch(prompts) and body.sampling_params.n == 1)
        if body.stream_id is not None and not self._is_single:
            raise RequestRefused("stream_id names one stream: it goes with one prompt and without n.")
        self._lease = session.lease(body.stream_id)
        self._prompt: dict[str, Any] = {}  # of segments: what they became

    async def requests(self) -> list[GenerateRequest]:
        return await asyncio.to_thread(self._prepare)

    def _prepare(self) -> list[GenerateRequest]:
        if self._is_stream:
            return [self._from_segments()]
        prompts, samples = prompt_ids(self.runtime, self.body.prompts()), self.body.sampling_params.n
        if len(prompts) * samples > MOST_PROMPTS:
            raise RequestRefused(f"{len(prompts)} prompts times {samples} samples are above {MOST_PROMPTS}.")
        return [self._request(ids, sample) for ids in prompts for sample in range(samples)]

    def _from_segments(self) -> GenerateRequest:
        body = self.body
        committed: Any = body.input_ids or []
        healed = segments.healed(self.runtime, committed, body.segments or [], body.heal)
        held = healed.held_back.decode()
        self._prompt = {"prompt_ids": healed.token_ids[len(committed) :], "held_back": held}
        return replace(self._request(healed.token_ids, 0), prefix_text=healed.held_back)

    def _request(self, ids: list[int], sample: int) -> GenerateRequest:
        body, given = self.body, self.body.sampling_params
        start = body.logprob_start_len
        params = given.params(
            max_tokens=given.max_new_tokens,
            logprobs=body.return_logprob,
            top_logprobs=body.top_logprobs_num,
            prompt_logprobs_start=start if body.return_logprob and start is not None and start >= 0 else None,
        )
        return GenerateRequest(
            ids,
            replace(params, seed=sample_seed(params.seed, sample)),
            constraint=given.constraint(),
            salt=body.cache_salt,
            priority=body.priority,
            use_cache=body.use_cache,
            lease=self._lease,
        )

    async def answer(self) -> dict[str, Any] | list[Any]:
        results = await self.session.run(await self.requests())
        answers = [self._result(result) for result in results]
        return answers[0] if self._is_single else answers

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        requests = await self.requests()
        async with self.session.start(requests) as runs:
            async for index, event in runs.events():
                if isinstance(event, Delta):
                    yield {"index": index, "delta": event.text}
                elif isinstance(event, Completion):
                    yield {"index": index, **self._result(event)}

    def _result(self, result: Completion) -> dict[str, Any]:
        body = generated(result, self.runtime.tokenizer, with_logprobs=self.body.return_logprob)
        body["meta_info"] |= {**self._prompt, "id": self.session.request_id}
        return body


def generated(result: Completion, tokenizer: Tokenizer, *, with_logprobs: bool = False) -> dict[str, Any]:
    """A finished generation as the native routes give it."""
    meta = {
        **result.usage._asdict(),
        "cached_tokens_details": cached_by_tier(result),
        "drafts": list(result.drafts),
        "finish_reason": {"type": result.finish_reason, "matched": result.matched_stop},
        "is_complete": result.is_complete,
        "kept": result.kept,
        "tail": result.tail,
        "segments": [list(segment) for segment in result.segments],
        "timing": dict(result.timing),
    }
    if with_logprobs:
        for name, entries in (("output", result.logprobs), ("input", result.prompt_logprobs)):
            meta[f"{name}_token_logprobs"] = [_entry(tokenizer, e.token_id, e.logprob) for e in entries]
            meta[f"{name}_top_logprobs"] = [[_entry(tokenizer, *pair) for pair in e.top] for e in entries]
    return {"text": result.text, "output_ids": list(result.token_ids), "meta_info": meta}


def _entry(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> list[Any]:
    return [logprob, token_id, tokenizer.decode_bytes([token_id]).decode(errors="replace")]


def _is_batch(prompts: Any) -> bool:
    return isinstance(prompts, list) and bool(prompts) and not isinstance(prompts[0], int)


# -- /select -----------------------------------------------------------------------------------------------------------


async def select(session: Session, body: SelectBody) -> dict[str, Any]:
    """Log-probabilities of choices after a prompt, computed as one token trie."""
    requests, extra = await asyncio.to_thread(_score_requests, session.runtime, body)
    requests[0] = replace(requests[0], lease=session.lease(body.stream_id))
    joint, *bare = await session.run(requests)
    choices = [
        {"token_ids": list(c.token_ids), "logprobs": list(c.logprobs), "sum_logprob": sum(c.logprobs)}
        for c in joint.choices
    ]
    for choice, alone in zip(choices, bare[0].choices if bare else (), strict=bool(bare)):
        choice["unconditional_logprobs"] = list(alone.logprobs)
    return {"choices": choices, "meta_info": {**_usage([joint, *bare]), **extra, "timing": dict(joint.timing)}}


def _usage(results: Sequence[ScoreResult]) -> dict[str, int]:
    counts = [result.usage._asdict() for result in results]
    return {name: sum(count[name] for count in counts) for name in counts[0]}


def _score_requests(runtime: LocalRuntime, body: SelectBody) -> tuple[list[ScoreRequest], dict[str, Any]]:
    if (body.choices is None) == (body.choice_ids is None):
        raise RequestRefused("Give either choices (texts) or choice_ids.")
    if body.text is not None and (body.segments is not None or (body.choice_ids and body.input_ids)):
        raise RequestRefused("Give one kind of prompt: text, input_ids, or segments.")
    routing: dict[str, Any] = {"salt": body.cache_salt, "priority": body.priority, "use_cache": body.use_cache}
    if body.choices is None:
        prompt: Prompt = body.text if body.text is not None else body.input_ids or []
        ids = prompt_ids(runtime, prompt)[0]
        return [ScoreRequest(ids, body.choice_ids or [], **routing)], {}
    committed = body.input_ids or []
    pieces = body.segments if body.segments is not None else [body.text or ""]
    split = segments.split(runtime, committed, pieces, body.choices)
    extra = {"prompt_ids": split.token_ids[len(committed) :], "pending": split.pending}
    requests = [ScoreRequest(split.token_ids, split.choices, **routing)]
    if body.unconditional:
        alone = [runtime.tokenizer.encode(choice) for choice in body.choices]
        requests.append(ScoreRequest([runtime.tokenizer.prefix_id], alone, **routing))
    return requests, extra


# -- /fork -------------------------------------------------------------------------------------------------------------


async def fork(session: Session, body: ForkBody) -> dict[str, Any]:
    """One prefix, many suffixes, one response. Each joint text is encoded whole, so forking moves no token boundary."""
    if body.sampling_params.n != 1:
        raise RequestRefused("n is for /generate; give the suffix as often as you want it.")
    requests = await asyncio.to_thread(_branches, session.runtime, body)
    results = await session.run(requests)
    return {"branches": [generated(result, session.runtime.tokenizer) for result in results]}


def _branches(runtime: LocalRuntime, body: ForkBody) -> list[GenerateRequest]:
    given = body.sampling_params
    params = given.params(max_tokens=given.max_new_tokens)
    prompts = [
        segments.healed(runtime, body.input_ids or [], [(body.text or "") + suffix], heal=False).token_ids
        for suffix in body.suffixes
    ]
    return [
        GenerateRequest(
            ids,
            replace(params, seed=sample_seed(params.seed, index)),
            constraint=given.constraint(),
            salt=body.cache_salt,
            priority=body.priority,
        )
        for index, ids in enumerate(prompts)
    ]
