"""SGLang's offline `Engine`: prompts in, texts out, without the language."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from lmprog.backends.base import Backend
from lmprog.compat.sglang.functions import SglFunction
from lmprog.compat.sglang.runtime import Runtime
from lmprog.compat.sglang.states import ProgramState
from lmprog.compat.sglang.words import gen
from lmprog.errors import InvalidArgument

_CONSTRAINTS = ("regex", "json_schema")


class Engine:
    """`Engine(model_path="smollm2-135m").generate(["Once upon", "The end of"], {"max_new_tokens": 32})`.

    Results are {"text", "meta_info"}; sampling parameters have SGLang's names. Also a context manager.
    """

    def __init__(self, *, model_path: str, **server_args: Any) -> None:
        self.backend: Backend = Runtime(model_path=model_path, **server_args)

    @classmethod
    def over(cls, backend: Backend) -> Engine:
        """On a backend that is there already."""
        engine = cls.__new__(cls)
        engine.backend = backend
        return engine

    def generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        return_logprob: bool = False,
        top_logprobs_num: int | None = None,
        stream: bool = False,
    ) -> Any:
        """One result for one prompt, a list of them for a list. With stream=True (one prompt) an iterator of results
        whose texts grow."""
        logprobs = {"return_logprob": return_logprob or None, "top_logprobs_num": top_logprobs_num}
        states = self._start_all(prompt, sampling_params, logprobs, stream=stream)
        if stream:
            return _growing(states[0])
        results = [_result(state) for state in states]
        return results[0] if isinstance(prompt, str) else results

    async def async_generate(
        self,
        prompt: str | Sequence[str],
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        return_logprob: bool = False,
        top_logprobs_num: int | None = None,
        stream: bool = False,
    ) -> Any:
        """`generate` that does not block the event loop; with stream=True an asynchronous iterator."""
        logprobs = {"return_logprob": return_logprob or None, "top_logprobs_num": top_logprobs_num}
        if stream:
            return _growing_async(self._start_all(prompt, sampling_params, logprobs, stream=True)[0])
        import asyncio

        return await asyncio.to_thread(
            self.generate,
            prompt,
            sampling_params,
            return_logprob=return_logprob,
            top_logprobs_num=top_logprobs_num,
        )

    def _start_all(
        self, prompt: str | Sequence[str], params: Any, logprobs: Mapping[str, Any], *, stream: bool
    ) -> list[ProgramState]:
        """A state for each prompt; only one of them can be streamed."""
        if stream and not isinstance(prompt, str):
            raise InvalidArgument("stream=True takes one prompt.")
        prompts = [prompt] if isinstance(prompt, str) else prompt
        each = zip(prompts, _one_for_each(prompts, params), strict=True)
        return [self._start(text, {**own, **logprobs}, stream=stream) for text, own in each]

    def _start(self, prompt: str, params: Mapping[str, Any], *, stream: bool) -> ProgramState:
        constraint = {name: params[name] for name in _CONSTRAINTS if params.get(name) is not None}

        def body(s: ProgramState) -> None:
            s += prompt
            s += gen("text", **constraint)

        options = {name: value for name, value in params.items() if name not in _CONSTRAINTS}
        return SglFunction(body).run(backend=self.backend, stream=stream, **options)

    def get_server_info(self) -> dict[str, Any]:
        return self.backend.server_info()

    def flush_cache(self) -> None:
        self.backend.flush_cache()

    def shutdown(self) -> None:
        self.backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _one_for_each(prompts: Sequence[Any], params: Any) -> list[Mapping[str, Any]]:
    if params is None or isinstance(params, Mapping):
        return [params or {}] * len(prompts)
    if len(params) != len(prompts):
        raise InvalidArgument(f"There are {len(params)} sampling_params for {len(prompts)} prompts.")
    return list(params)


def _result(state: ProgramState) -> dict[str, Any]:
    return {"text": state["text"], "meta_info": state.get_meta_info("text")}


def _growing(state: ProgramState) -> Iterator[dict[str, Any]]:
    text = ""
    for piece in state.text_iter("text"):
        text += piece
        yield {"text": text, "meta_info": {}}
    yield _result(state)


async def _growing_async(state: ProgramState) -> AsyncIterator[dict[str, Any]]:
    text = ""
    async for piece in state.text_async_iter("text"):
        text += piece
        yield {"text": text, "meta_info": {}}
    yield _result(state)
