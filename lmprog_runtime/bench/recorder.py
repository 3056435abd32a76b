"""Runtimes whose requests are kept, to say what a cache could have saved at best."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from lmprog_runtime.bench.environment import environment
from lmprog_runtime.bench.results import FULL, NO_CACHE, NO_JUMP_FORWARD
from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.engine import Engine
from lmprog_runtime.request import GenerateRequest, ScoreRequest, Sink
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.scheduler.simulator import TraceRequest, optimum


@dataclass
class _Kept:
    """A request and what came of it."""

    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    cached: int = 0


class RecordingEngine:
    """An engine that keeps what passes through `submit` and `submit_group`; everything else is the engine's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.kept: list[_Kept] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> int:
        return self.submit_group([request], [sink])[0]

    def submit_group(self, requests: list[GenerateRequest | ScoreRequest], sinks: list[Sink]) -> list[int]:
        watched = [self._watch(request, sink) for request, sink in zip(requests, sinks, strict=True)]
        return self._engine.submit_group(requests, watched)

    def _watch(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> Sink:
        kept = _Kept(tuple(request.token_ids))
        self.kept.append(kept)
        return sink._replace(done=_noting(kept, sink.done))


def _noting(kept: _Kept, done: Callable[[Any], None]) -> Callable[[Any], None]:
    def note(result: Any) -> None:
        kept.output, kept.cached = tuple(getattr(result, "token_ids", ())), result.usage.cached_tokens
        done(result)

    return note


class RecordedRuntime:
    """A runtime and what was asked of it since the last `restart`."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self.runtime = runtime
        self._engine = RecordingEngine(runtime.engine)
        cast("Any", runtime).engine = self._engine
        self._computed_before = 0

    def restart(self) -> None:
        """Empty the cache and forget what was kept."""
        self.runtime.flush_cache()
        self._engine.kept.clear()
        self._computed_before = self._computed()

    def counts(self) -> dict[str, float]:
        """computed_tokens: rows that the model computed. Hit rates are cached over prompt tokens; the best one computes
        every distinct edge of the tree of all requests once, with a pool without end."""
        kept = self._engine.kept
        prompts = sum(len(request.prompt) for request in kept)
        best, _ = optimum([TraceRequest(prompt=request.prompt, output=request.output) for request in kept])
        return {
            "requests": len(kept),
            "computed_tokens": self._computed() - self._computed_before,
            "hit_rate": sum(request.cached for request in kept) / prompts if prompts else 0.0,
            "best_hit_rate": best / prompts if prompts else 0.0,
        }

    def _computed(self) -> int:
        return int(self.runtime.statistics()["computed_tokens"])


CHANGES: dict[str, dict[str, Any]] = {
    FULL: {},
    NO_CACHE: {"disable_radix_cache": True},
    NO_JUMP_FORWARD: {"jump_forward": False},
}
"""Settings of a runtime. Without forks it is the programs that differ."""


@contextlib.contextmanager
def ablations(**settings: Any) -> Iterator[dict[str, RecordedRuntime]]:
    """A runtime per ablation, all on one executor: only one of them may be used at a time, from an empty cache."""
    first = LocalRuntime.start(**settings)
    with contextlib.ExitStack() as stack:
        stack.callback(first.close)
        found = {FULL: RecordedRuntime(first)}
        for name, changes in CHANGES.items():
            if changes:
                config = RuntimeConfig.from_keywords(**settings, **changes)
                other = LocalRuntime(first.files, first.executor, first.tokenizer, config)
                stack.callback(other.close)
                found[name] = RecordedRuntime(other)
        yield found


def context(recorded: RecordedRuntime) -> dict[str, Any]:
    threads = recorded.runtime.config.threads or os.cpu_count()
    return {"model": recorded.runtime.info(), "threads": threads, "environment": environment()}
