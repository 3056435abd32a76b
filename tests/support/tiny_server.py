"""A real server on loopback over a tiny random model, and what its tests ask it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import httpx
import openai
from transformers import AutoModelForCausalLM, PreTrainedModel

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.model.decoder import TorchExecutor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.launch import DrainingServer, make_server
from lmprog_runtime.server.settings import ServerSettings
from lmprog_runtime.server.state import ServerState
from tests.support import tiny_engine
from tests.support.byte_tokenizer import CHATML
from tests.support.tiny_engine import TINY_VOCAB, TOKENIZER
from tests.support.tiny_models import make_model

CONTEXT, SLOTS = 4096, 16384
ASCII_ONLY = {str(token_id): bias for token_id, bias in tiny_engine.ASCII_ONLY.items()}  # as JSON has it


@cache
def _directory() -> Path:
    directory = Path(mkdtemp(prefix="lmprog-tiny-server-"))
    make_model("llama", vocab_size=TINY_VOCAB, max_position_embeddings=CONTEXT).save_pretrained(directory)
    return directory


@cache
def tiny_reference() -> PreTrainedModel:
    """Its model in transformers, in float32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(_directory(), dtype="float32")
    return model.eval()


def tiny_runtime(*, template: str | None = CHATML, slots: int = SLOTS, **settings: Any) -> LocalRuntime:
    spec = read_spec(_directory())
    executor = TorchExecutor(spec, open_weights(_directory(), spec), num_slots=slots, dtype="float32", device="cpu")
    files = ModelFiles("tiny", _directory(), "tiny", CONTEXT, template, None)
    return LocalRuntime(files, executor, TOKENIZER, RuntimeConfig(**{"model": "tiny", "max_running": 64, **settings}))


class Served:
    """A running server and its clients."""

    def __init__(self, state: ServerState, server: DrainingServer, url: str) -> None:
        self.state, self.runtime, self.server, self.url = state, state.runtime, server, url
        key = (state.settings.keys or ("none",))[0]
        self.http = httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Bearer {key}"})
        self.openai = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, **body: Any) -> httpx.Response:
        # escaped, so that half a surrogate pair can be sent
        return self.http.post(path, content=json.dumps(body), headers={"content-type": "application/json"})

    def ok(self, path: str, **body: Any) -> Any:
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, **body: Any) -> list[Any]:
        """The data of a stream's events; "[DONE]" stays text."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as answer:
            text = answer.read().decode()
        assert answer.status_code == 200, text
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def refused(self, path: str, status: int = 400, **body: Any) -> str:
        """The message of a call that must be refused."""
        answer = self.post(path, **body)
        assert answer.status_code == status, (answer.status_code, answer.text)
        message: str = answer.json()["error"]["message"]
        return message

    def metric(self, name: str) -> float:
        """Sum of a metric's series."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"lmprog:{name}{{"))

    def is_at_rest(self) -> bool:
        """Nothing runs, nothing waits, and every used slot could be evicted."""
        numbers = self.runtime.statistics()
        cache = numbers["radix_cache"]
        idle = not numbers["running"] and not numbers["waiting"] and not self.state.running
        return idle and cache["used_slots"] == cache["evictable_tokens"]

    def comes_to_rest(self, seconds: float = 10.0) -> None:
        eventually(self.is_at_rest, seconds)
        self.runtime.cache.check()


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not become so in time"
        time.sleep(0.01)


@contextmanager
def serving(runtime: LocalRuntime | None = None, **settings: Any) -> Iterator[Served]:
    """A server in a thread of its own, stopped at the end."""
    runtime = runtime or tiny_runtime()
    state = ServerState(runtime, ServerSettings(port=0, **settings))
    server = make_server(state)
    thread = threading.Thread(target=server.run, name="test-server", daemon=True)
    thread.start()
    try:
        eventually(lambda: bool(getattr(server, "started", False)) and state.is_warm, 30)
        port = server.servers[0].sockets[0].getsockname()[1]
        served = Served(state, server, f"http://127.0.0.1:{port}")
        try:
            yield served
        finally:
            served.http.close()
            served.openai.close()
    finally:
        server.should_exit = True
        thread.join(20)
        runtime.close()
