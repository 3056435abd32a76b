"""A trace of requests through tree and scheduler, with no model: what would have been reused, and what could have been.

A trace is JSON lines, one request each:

    {"prompt": [ids], "output": [ids], "at": 0, "namespace": [...], "priority": 0, "group": "a", "dead": false}

`output` are the tokens that the model gave; the prompt of a later request often repeats them. `at` is a time in
computed tokens, not before that of the line above: a request arrives when so many tokens have been computed, or when
nothing is left to do. Neighbours with the same `group` arrive together. `dead`: nobody will ask for what it added to
its prefix, and its program says so. All but `prompt` may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.config import CacheConfig
from lmprog_runtime.cache.manager import CacheManager
from lmprog_runtime.cache.node import Namespace
from lmprog_runtime.scheduler.config import SchedulerConfig
from lmprog_runtime.scheduler.loop import Scheduler
from lmprog_runtime.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    at: int = 0  # computed tokens
    namespace: Namespace = field(default=("trace",))
    priority: int = 0
    group: str | None = None
    dead: bool = False


def read_trace(lines: Iterable[str]) -> list[TraceRequest]:
    """ValueError names the line that is not a request."""
    requests = []
    for number, line in enumerate(lines, start=1):
        try:
            fields: dict[str, Any] = {
                name: tuple(v) if isinstance(v, list) else v for name, v in json.loads(line).items()
            }
            requests.append(TraceRequest(**fields))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"Line {number} of the trace is not a request: {error}") from error
    return requests


class Simulation(NamedTuple):
    requests: int
    prompt_tokens: int
    cached_tokens: int  # of the prompts
    computed_tokens: int  # rows of all steps, outputs included
    steps: int
    preemptions: int
    evicted_tokens: int
    best_cached_tokens: int  # with a cache that never forgets, one request after the other
    best_computed_tokens: int

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def best_hit_rate(self) -> float:
        return self.best_cached_tokens / self.prompt_tokens

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.prompt_tokens} prompt tokens: hit rate {self.hit_rate:.1%} "
            f"(optimum {self.best_hit_rate:.1%}), {self.computed_tokens} tokens computed "
            f"(optimum {self.best_computed_tokens}) in {self.steps} steps, {self.preemptions} preemptions"
        )


def simulate(trace: Items[TraceRequest], cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> Simulation:
    """Run a trace; PromptTooLong when a request can never fit."""
    cache = CacheManager(cache_config)
    scheduler = Scheduler(scheduler_config, cache)
    run = _Run(trace, scheduler)
    run.to_the_end()
    best_cached, best_computed = optimum(trace)
    return Simulation(
        requests=len(trace),
        prompt_tokens=sum(len(request.prompt) for request in trace),
        cached_tokens=cache.counters.hit,
        computed_tokens=scheduler.counters.computed_tokens,
        steps=scheduler.counters.steps,
        preemptions=scheduler.counters.preemptions,
        evicted_tokens=cache.counters.evicted,
        best_cached_tokens=best_cached,
        best_computed_tokens=best_computed,
    )


class _Run:
    def __init__(self, trace: Items[TraceRequest], scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._requests: dict[Sequence, TraceRequest] = {}
        grouped = groupby(enumerate(trace), key=lambda entry: entry[1].group or entry[0])
        self._arrivals = [[request for _, request in members] for _, members in grouped]

    def to_the_end(self) -> None:
        arrivals = iter(self._arrivals)
        coming = next(arrivals, None)
        while coming is not None or self.scheduler.has_work():
            while coming is not None and self._is_due(coming[0]):
                self._submit(coming)
                coming = next(arrivals, None)
            self._step()

    def _is_due(self, request: TraceRequest) -> bool:
        return not self.scheduler.has_work() or request.at <= self.scheduler.counters.computed_tokens

    def _submit(self, requests: list[TraceRequest]) -> None:
        group = []
        for request in requests:
            prompt = list(request.prompt)
            sequence = Sequence(prompt, len(prompt), request.namespace, len(request.output), priority=request.priority)
            self._requests[sequence] = request
            group.append(sequence)
        self.scheduler.add(group)

    def _step(self) -> None:
        step = self.scheduler.schedule()
        assert step is not None
        self.scheduler.complete(step)
        for output in step.outputs:
            sequence = output.sequence
            done = len(sequence.token_ids) - sequence.prompt_length
            tokens = self._requests[sequence].output
            if done < len(tokens) and len(sequence.token_ids) < sequence.token_limit:
                self.scheduler.append(sequence, [tokens[done]])
            if done + 1 >= len(tokens) or len(sequence.token_ids) >= sequence.token_limit:
                self.scheduler.finish(sequence, dead=self._requests.pop(sequence).dead)


def optimum(trace: Items[TraceRequest]) -> tuple[int, int]:
    """Cached prompt tokens, and tokens computed, when nothing is ever forgotten: each distinct edge of the tree of all
    requests is computed once, and the last token of every prompt again."""
    slots = sum(len(request.prompt) + len(request.output) for request in trace)
    cache = CacheManager(CacheConfig(num_slots=max(1, slots)))
    cached = computed = 0
    for request in trace:
        key = keys.encode(request.prompt + request.output[:-1])
        match = cache.match(request.namespace, key, len(request.prompt) - 1)
        found = 0 if match is None else match.length
        total = keys.count(key)
        row = cache.open_row(request.namespace, match, total - found, keep_free=0, hit=True)
        assert row is not None
        cache.release(row, key, total)
        cached += found
        computed += total - found
    return cached, computed
