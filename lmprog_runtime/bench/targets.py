"""What a benchmark sends its requests to: a runtime in this process, or a server that speaks one of three APIs."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import requests
import torch

from lmprog_runtime.bench.environment import peak_memory_mb
from lmprog_runtime.bench.outcome import Outcome
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.request import Completion, Delta, GenerateRequest, SamplingParams, Sink
from lmprog_runtime.runtime import LocalRuntime

TIMEOUT_S = 6 * 3600


class Target(ABC):
    """Greedy decoding of prompts in token ids, one thread per request."""

    name: str
    ignore_eos: bool = True

    @abstractmethod
    def send(self, token_ids: Sequence[int], output_len: int) -> Outcome:
        """Blocks until the request has ended. Its errors are part of the outcome."""

    @abstractmethod
    def flush_cache(self) -> bool:
        """Forget all prefixes. False when the target cannot."""

    def peak_memory_mb(self) -> float | None:
        return None

    def info(self) -> dict[str, Any]:
        return {}


class InProcess(Target):
    name = "in-process"

    def __init__(self, runtime: LocalRuntime, *, ignore_eos: bool = True) -> None:
        self.runtime, self.ignore_eos = runtime, ignore_eos

    def send(self, token_ids: Sequence[int], output_len: int) -> Outcome:
        params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=self.ignore_eos)
        outcome = Outcome(len(token_ids))
        ended: SimpleQueue[Completion | BaseException] = SimpleQueue()

        def end(value: Completion | BaseException) -> None:
            outcome.note_end()
            ended.put(value)

        def delta(piece: Delta) -> None:
            outcome.note_piece(len(piece.token_ids))

        self.runtime.engine.submit(GenerateRequest(list(token_ids), params), Sink(delta, end, end))
        result = ended.get()
        if isinstance(result, BaseException):
            outcome.error = str(result)
        else:
            _note_result(outcome, result)
        return outcome

    def flush_cache(self) -> bool:
        self.runtime.flush_cache()
        return True

    def peak_memory_mb(self) -> float | None:
        """Of the card where the model runs on one, else of this process since its start."""
        if str(self.runtime.info()["device"]).startswith("cuda"):
            return torch.cuda.max_memory_allocated() / 2**20
        return peak_memory_mb(os.getpid())

    def info(self) -> dict[str, Any]:
        return self.runtime.info()


def _note_result(outcome: Outcome, result: Completion) -> None:
    outcome.output_len, outcome.cached_tokens = result.usage.completion_tokens, result.usage.cached_tokens
    outcome.text, outcome.token_ids = result.text, list(result.token_ids)
    outcome.settle()


class Server(Target):
    """A server over HTTP. `key`: sent as a bearer token."""

    path: str

    def __init__(
        self, url: str, model: str, tokenizer: Tokenizer, *, key: str | None = None, pid: int | None = None
    ) -> None:
        self.url, self.model, self.tokenizer, self.pid = url.rstrip("/").removesuffix("/v1"), model, tokenizer, pid
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.sends_text = False
        self.streams = True  # False: the answer comes whole, for peers whose streams do not say how long it was
        self.extra: dict[str, Any] = {}  # more fields of every request

    @abstractmethod
    def body(self, token_ids: Sequence[int], output_len: int) -> dict[str, Any]: ...

    @abstractmethod
    def read(self, outcome: Outcome, event: dict[str, Any]) -> None:
        """Note what an event of the stream says."""

    def send(self, token_ids: Sequence[int], output_len: int) -> Outcome:
        body = {**self.body(token_ids, output_len), "stream": self.streams, **self.extra}
        outcome = Outcome(len(token_ids))
        try:
            with requests.post(
                self.url + self.path, json=body, headers=self.headers, stream=self.streams, timeout=TIMEOUT_S
            ) as answer:
                self._read_all(outcome, answer)
        except (requests.RequestException, ValueError, KeyError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.note_end()
        outcome.settle()
        return outcome

    def _read_all(self, outcome: Outcome, answer: requests.Response) -> None:
        if answer.status_code != 200:
            outcome.error = f"{answer.status_code}: {answer.text[:500]}"
            return
        for event in _events(answer) if self.streams else [answer.json()]:
            if "error" in event:
                outcome.error = str(event["error"])
                return
            self.read(outcome, event)

    def prompt(self, token_ids: Sequence[int]) -> str | list[int]:
        if not self.sends_text:
            return list(token_ids)
        return self.text(token_ids)

    def text(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode_bytes(token_ids).decode(errors="replace")

    def flush_cache(self) -> bool:
        try:
            return requests.post(f"{self.url}/flush_cache", headers=self.headers, timeout=60).status_code == 200
        except requests.RequestException:
            return False

    def peak_memory_mb(self) -> float | None:
        return peak_memory_mb(self.pid)

    def info(self) -> dict[str, Any]:
        try:
            answer = requests.get(f"{self.url}/get_model_info", headers=self.headers, timeout=60)
            return dict(answer.json()) if answer.status_code == 200 else {}
        except (requests.RequestException, ValueError):
            return {}


def _events(answer: requests.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines(chunk_size=None):  # as it arrives
        data = line.decode().removeprefix("data:").strip()
        if line.startswith(b"data:") and data != "[DONE]":
            yield json.loads(data)


class Completions(Server):
    """OpenAI's text completions."""

    name, path = "openai", "/v1/completions"

    def body(self, token_ids: Sequence[int], output_len: int) -> dict[str, Any]:
        return {"prompt": self.prompt(token_ids), **_openai_fields(self, "max_tokens", output_len)}

    def read(self, outcome: Outcome, event: dict[str, Any]) -> None:
        for choice in event.get("choices", ()):
            _note_text(outcome, choice.get("text"))
        _read_usage(outcome, event.get("usage"))


class Chat(Server):
    """OpenAI's chat: the prompt is one message of the user, so the server's template comes on top of it."""

    name, path = "openai-chat", "/v1/chat/completions"

    def body(self, token_ids: Sequence[int], output_len: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.text(token_ids)}]
        return {"messages": messages, **_openai_fields(self, "max_completion_tokens", output_len)}

    def read(self, outcome: Outcome, event: dict[str, Any]) -> None:
        for choice in event.get("choices", ()):
            delta = choice["delta"] if self.streams else choice["message"]
            _note_text(outcome, delta.get("content") or delta.get("reasoning_content"))
        _read_usage(outcome, event.get("usage"))


class Native(Server):
    """/generate of SGLang and of this project's server."""

    name, path = "sglang", "/generate"

    def body(self, token_ids: Sequence[int], output_len: int) -> dict[str, Any]:
        params = {"temperature": 0.0, "max_new_tokens": output_len, "ignore_eos": self.ignore_eos}
        field = "text" if self.sends_text else "input_ids"
        return {field: self.prompt(token_ids), "sampling_params": params}

    def read(self, outcome: Outcome, event: dict[str, Any]) -> None:
        """Pieces are called `delta` here; SGLang sends all text so far each time."""
        text = event["delta"] if "delta" in event else event["text"][len(outcome.text) :]
        meta = event.get("meta_info", {})
        count = max(1, meta.get("completion_tokens", outcome.output_len + 1) - outcome.output_len)
        _note_text(outcome, text, count)
        outcome.output_len = meta.get("completion_tokens", outcome.output_len)
        outcome.prompt_len = meta.get("prompt_tokens", outcome.prompt_len)
        outcome.cached_tokens = meta.get("cached_tokens", outcome.cached_tokens)


def _note_text(outcome: Outcome, text: str | None, count: int = 1) -> None:
    if not text:
        return
    outcome.text += text
    outcome.output_len += count  # an estimate, until the usage says it
    outcome.note_piece(count)


def _openai_fields(server: Server, limit: str, output_len: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"model": server.model, "temperature": 0.0, limit: output_len}
    if server.streams:
        fields["stream_options"] = {"include_usage": True}
    return {**fields, "ignore_eos": True} if server.ignore_eos else fields


def _read_usage(outcome: Outcome, usage: dict[str, Any] | None) -> None:
    if usage:
        outcome.prompt_len, outcome.output_len = usage["prompt_tokens"], usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        outcome.cached_tokens = details.get("cached_tokens", outcome.cached_tokens)


SERVERS: dict[str, type[Server]] = {
    "openai": Completions,
    "openai-chat": Chat,
    "sglang": Native,
    "lmprog": Native,
    "sglang-oai": Completions,
    "sglang-oai-chat": Chat,
    "vllm": Completions,
    "vllm-chat": Chat,
}
"""By the names of `--backend`; those of SGLang's bench_serving are among them."""


def server_class(name: str) -> type[Server]:
    if name not in SERVERS:
        raise RequestRefused(f"There is no backend {name!r}; there are in-process, {', '.join(SERVERS)}.")
    return SERVERS[name]
