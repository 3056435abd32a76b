"""Logs that replay to the same decisions, and traces that say what could have been reused."""

from __future__ import annotations

import json
from random import Random

import pytest

from lmprog_runtime.cache import CacheConfig
from lmprog_runtime.scheduler import SchedulerConfig
from lmprog_runtime.scheduler.decision_log import Diverged, RecordedCache, RecordedScheduler, replay, to_lines
from lmprog_runtime.scheduler.simulator import TraceRequest, optimum, read_trace, simulate
from tests.support.scheduler_model import OPERATIONS, SchedulerModel


def recorded_model(seed: int, lines: list[str]) -> SchedulerModel:
    model = SchedulerModel(seed)
    cache = RecordedCache(model.cache.config, to_lines(lines.append))
    model.cache, model.scheduler = cache, RecordedScheduler(model.scheduler.config, cache)
    return model


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_decides_the_same_and_ends_the_same(seed: int) -> None:
    lines: list[str] = []
    model, random = recorded_model(seed, lines), Random(seed)
    operations = {op: w for op, w in OPERATIONS.items() if op.__name__ not in ("evict", "expire_lease")}
    for _ in range(400):
        [operation] = random.choices(list(operations), list(operations.values()))
        model.do(operation, random.randrange(2**32))
    again = replay(lines, model.cache.config, model.scheduler.config)
    assert again.counters == model.scheduler.counters
    assert again.cache.counters == model.cache.counters
    assert [_shape(node) for node in again.cache.tree.nodes()] == [_shape(node) for node in model.cache.tree.nodes()]


def _shape(node) -> tuple:
    return (node.start, node.key, node.slots.tolist(), node.locks, node.hits, node.used)


def test_a_replay_under_other_settings_names_the_line() -> None:
    lines: list[str] = []
    model = recorded_model(0, lines)
    for seed in range(40):
        model.do([SchedulerModel.submit, SchedulerModel.step][seed % 2], seed)
    other = SchedulerConfig(context_length=60, step_tokens=model.scheduler.config.max_running, max_running=1)
    with pytest.raises(Diverged, match=r"Line \d+: the log has"):
        replay(lines, model.cache.config, other)
    with pytest.raises(ValueError, match="Line 1 of the log has an unknown entry 'nap'"):
        replay(['["nap"]'], model.cache.config, other)


def few_shot_trace() -> list[TraceRequest]:
    head = tuple(range(100))
    return [TraceRequest(prompt=(*head, 1000 + n, 2000 + n), output=(5, 6, 7), at=n * 50) for n in range(10)]


def test_simulation_reaches_the_optimum_when_nothing_is_evicted() -> None:
    trace = few_shot_trace()
    assert optimum(trace) == (900, 100 + 10 * 4)
    result = simulate(trace, CacheConfig(num_slots=1000), SchedulerConfig(context_length=500))
    assert (result.cached_tokens, result.computed_tokens) == (900, 140)
    assert result.hit_rate == result.best_hit_rate == 900 / 1020
    assert "hit rate 88.2% (optimum 88.2%)" in str(result)


def test_simulation_of_groups_priorities_and_small_pools() -> None:
    random = Random(0)
    trace = [
        TraceRequest(
            prompt=tuple(random.choices(range(3), k=random.randrange(1, 30))), output=(1,) * random.randrange(4),
            group=str(n // 3), priority=n % 2,
        )
        for n in range(60)
    ]  # fmt: skip
    result = simulate(trace, CacheConfig(num_slots=48), SchedulerConfig(context_length=500, decode_reserve=0))
    assert result.requests == 60
    assert result.evicted_tokens > 0
    assert 0 < result.hit_rate < result.best_hit_rate
    assert result.computed_tokens > result.best_computed_tokens


def test_a_trace_is_read_line_by_line() -> None:
    line = {"prompt": [1, 2], "output": [3], "at": 7, "namespace": ["m", None], "group": "g"}
    [request] = read_trace([json.dumps(line)])
    assert request == TraceRequest(prompt=(1, 2), output=(3,), at=7, namespace=("m", None), group="g")
    for wrong in ('{"prompt": [1], "promt": 2}', "[1, 2]", "{", "{}"):
        with pytest.raises(ValueError, match="Line 2 of the trace is not a request"):
            read_trace(['{"prompt": [1]}', wrong])
