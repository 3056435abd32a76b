"""The native API: /generate, /select, /fork and friends. `RuntimeEndpoint` of the language speaks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Completion, Delta, GenerateRequest, ScoreRequest, ScoreResult, TokenLogprob
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.common import Reply
from lmprog_runtime.server.completions import sample_seed
from lmprog_runtime.server.prompts import prompt_ids
from lmprog_runtime.server.protocol import MOST_CHOICES, MOST_N, Constrained, Prompt, Sampling, Strict
from lmprog_runtime.server.session import Session

Ids = list[int]


class NativeSampling(Sampling, Constrained):
    max_new_tokens: int | None = None
    n: Annotated[int, Field(ge=1, le=MOST_N)] = 1


class GenerateBody(Strict):
    text: str | list[str] | None = None
    input_ids: Ids | list[Ids] | None = None
    sampling_params: NativeSampling = Field(default_factory=NativeSampling)
    return_logprob: bool = False
    top_logprobs_num: Annotated[int, Field(ge=0, le=100)] = 0
    logprob_start_len: int | None = None
    stream: bool = False
    prefix_hex: str = ""  # token healing: bytes that the output must begin with, in hex
    cache_salt: str | None = None
    priority: int = 0
    use_cache: bool = True

    def prompts(self) -> Prompt:
        if (self.text is None) == (self.input_ids is None):
            raise RequestRefused("Give either text or input_ids.")
        return self.text if self.text is not None else self.input_ids  # type: ignore[return-value]


class SelectBody(Strict):
    input_ids: Ids | None = None
    text: str | None = None
    choices: Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    choice_ids: Annotated[list[Ids], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    cache_salt: str | None = None
    priority: int = 0


class ForkBody(Strict):
    text: str | None = None
    input_ids: Ids | None = None
    suffixes: Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)]
    sampling_params: NativeSampling = Field(default_factory=NativeSampling)
    cache_salt: str | None = None


class GenerateCall:
    """One request to /generate: one answer, or a list when the prompt was a list or n is above 1."""

    def __init__(self, session: Session, body: GenerateBody) -> None:
        self.session, self.runtime, self.body = session, session.runtime, body
        prompts = body.prompts()
        self._is_single = (isinstance(prompts, str) or _is_ids(prompts)) and body.sampling_params.n == 1

    async def requests(self) -> list[GenerateRequest]:
        body = self.body
        prompts = await asyncio.to_thread(prompt_ids, self.runtime, body.prompts())
        start = body.logprob_start_len if body.return_logprob else None
        params = body.sampling_params.params(
            max_tokens=body.sampling_params.max_new_tokens,
            logprobs=body.return_logprob,
            top_logprobs=body.top_logprobs_num,
            prompt_logprobs_start=start if start is not None and start >= 0 else None,
        )
        return [
            GenerateRequest(
                ids,
                replace(params, seed=sample_seed(params.seed, sample)),
                constraint=body.sampling_params.constraint(),
                prefix_text=_from_hex(body.prefix_hex),
                salt=body.cache_salt,
                priority=body.priority,
                use_cache=body.use_cache,
            )
            for ids in prompts
            for sample in range(body.sampling_params.n)
        ]

    async def answer(self) -> Reply:
        requests = await self.requests()
        results = await self.session.run(requests)
        answers = [self.result(result) for result in results]
        return Reply(answers[0] if self._is_single else answers)  # type: ignore[arg-type]

    async def stream(self) -> AsyncIterator[dict[str, Any]]:
        requests = await self.requests()
        async with self.session.start(requests) as runs:
            async for index, event in runs.events():
                if isinstance(event, Delta):
                    yield {"index": index, "delta": event.text}
                elif isinstance(event, Completion):
                    yield {"index": index, **self.result(event)}

    def result(self, result: Completion) -> dict[str, Any]:
        meta = {
            "prompt_tokens": result.usage.prompt_tokens,
            "completion_tokens": result.usage.completion_tokens,
            "cached_tokens": result.usage.cached_tokens,
            "forced_tokens": result.usage.forced_tokens,
            "finish_reason": {"type": result.finish_reason, "matched": result.matched_stop},
            "is_complete": result.is_complete,
            "kept": result.kept,
            "tail": result.tail,
            "timing": dict(result.timing),
        }
        if self.body.return_logprob:
            meta["output_token_logprobs"] = [_entry(entry) for entry in result.logprobs]
            meta["input_token_logprobs"] = [_entry(entry) for entry in result.prompt_logprobs]
        return {"text": result.text, "output_ids": list(result.token_ids), "meta_info": meta}


async def select(session: Session, body: SelectBody) -> dict[str, Any]:
    """Log-probabilities of choices after a prompt, computed as one token trie."""
    request = await asyncio.to_thread(_score_request, session.runtime, body)
    result: ScoreResult = (await session.run([request]))[0]
    return {
        "choices": [
            {
                "token_ids": list(choice.token_ids),
                "logprobs": list(choice.logprobs),
                "sum_logprob": sum(choice.logprobs),
            }
            for choice in result.choices
        ],
        "meta_info": {**result.usage._asdict(), "timing": dict(result.timing)},
    }


def _score_request(runtime: LocalRuntime, body: SelectBody) -> ScoreRequest:
    from lmprog_runtime.model.boundaries import joint_split

    if (body.choices is None) == (body.choice_ids is None):
        raise RequestRefused("Give either choices (texts) or choice_ids.")
    if body.choice_ids is not None:
        ids = prompt_ids(runtime, body.text if body.text is not None else body.input_ids or [])[0]
        return ScoreRequest(ids, body.choice_ids, salt=body.cache_salt, priority=body.priority)
    assert body.choices is not None
    fixed = list(body.input_ids or runtime.tokenizer.bos_ids)
    split = joint_split(runtime.tokenizer, fixed, body.text or "", body.choices)
    return ScoreRequest(split.token_ids, split.choices, salt=body.cache_salt, priority=body.priority)


async def fork(session: Session, body: ForkBody) -> dict[str, Any]:
    """One prefix, many suffixes, one response. Each joint text is encoded whole, so forking moves no token boundary."""
    texts = [(body.text or "") + suffix for suffix in body.suffixes]
    fixed = body.input_ids or []
    prompts = await asyncio.to_thread(lambda: [[*fixed, *ids] for ids in prompt_ids(session.runtime, texts)])
    params = body.sampling_params.params(max_tokens=body.sampling_params.max_new_tokens)
    requests = [
        GenerateRequest(
            ids,
            replace(params, seed=sample_seed(params.seed, index)),
            constraint=body.sampling_params.constraint(),
            salt=body.cache_salt,
        )
        for index, ids in enumerate(prompts)
    ]
    results = await session.run(requests)
    shape = GenerateCall(session, GenerateBody(text=""))
    return {"branches": [shape.result(result) for result in results]}


def _entry(entry: TokenLogprob) -> list[Any]:
    return [entry.logprob, entry.token_id, [list(pair) for pair in entry.top]]


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise RequestRefused(f"prefix_hex is not hexadecimal: {text!r}.") from error
