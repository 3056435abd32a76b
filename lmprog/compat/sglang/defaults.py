"""The default backend, as SGLang's programs ask for it."""

from __future__ import annotations

import threading
from typing import Any

import lmprog
from lmprog.backends.base import (
    Backend,
    GenerateCall,
    PendingCall,
    ScoreCall,
    Sink,
    Stream,
    Usage,
)
from lmprog.backends.forwarding import ForwardingBackend, ForwardingStream
from lmprog.errors import NoBackend
from lmprog.settings import default_backend

VERSION = f"lmprog {lmprog.__version__}"


def set_default_backend(backend: Backend) -> None:
    lmprog.set_default_backend(backend if isinstance(backend, CountedBackend) else CountedBackend(backend))


def flush_cache(backend: Backend | None = None) -> bool:
    lmprog.flush_cache(backend)
    return True


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    return lmprog.get_server_info(backend)


class GlobalConfig:
    verbosity = 0

    @property
    def default_backend(self) -> Backend | None:
        try:
            return default_backend()
        except NoBackend:
            return None

    @default_backend.setter
    def default_backend(self, backend: Backend) -> None:
        set_default_backend(backend)


global_config = GlobalConfig()


class TokenUsage:
    """Tokens of all calls since the last reset."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = Usage()

    @property
    def prompt_tokens(self) -> int:
        return self._total.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return self._total.completion_tokens

    def reset(self) -> None:
        self._total = Usage()

    def add(self, usage: Usage) -> None:
        with self._lock:
            self._total = self._total.plus(usage)


class CountedBackend(ForwardingBackend):
    """A backend with SGLang's `token_usage`, `endpoint` and `get_model_name()`. All else is the backend's own."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.token_usage = TokenUsage()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @property
    def endpoint(self) -> CountedBackend:
        return self

    def get_model_name(self) -> str:
        return str(self.server_info().get("model", self.name))

    def open_stream(self) -> Stream:
        return _CountedStream(self._backend.open_stream(), self.token_usage)


class _CountedStream(ForwardingStream):
    def __init__(self, stream: Stream, usage: TokenUsage) -> None:
        super().__init__(stream)
        self._usage = usage

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        return super().generate(call, self._counting(sink))

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        return super().score(call, self._counting(sink))

    def fork(self, count: int) -> list[Stream]:
        return [_CountedStream(stream, self._usage) for stream in self._stream.fork(count)]

    def _counting(self, sink: Sink) -> Sink:
        def done(result: Any) -> None:
            self._usage.add(result.usage)
            sink.done(result)

        return Sink(sink.delta, done, sink.fail)
