"""What the tree and the scheduler cost, without a model: milliseconds per step, microseconds per prompt.

python scripts/bench_scheduler.py [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from functools import partial
from random import Random

from lmprog_runtime.cache import CacheConfig, CacheManager, keys
from lmprog_runtime.scheduler import CascadeRule, Scheduler, SchedulerConfig, Sequence

SPACE = ("model", None, None)
RULE = CascadeRule(max_states=12, keys_per_state=40, query_group=3, alignment=256)


def percentiles(name: str, unit: str, samples: list[float], scale: float) -> str:
    ordered = sorted(sample * scale for sample in samples)
    p50, p90, p99 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.9, 0.99))
    return f"{name:<58} p50 {p50:8.3f}  p90 {p90:8.3f}  p99 {p99:8.3f} {unit}"


def prompts(count: int, random: Random) -> list[list[int]]:
    """Few-shot-like: 8 shared heads of 600 tokens, a question of 20 to 200 tokens."""
    heads = [random.choices(range(49152), k=600) for _ in range(8)]
    return [random.choice(heads) + random.choices(range(49152), k=random.randrange(20, 200)) for _ in range(count)]


def sequence(tokens: list[int], new: int) -> Sequence:
    return Sequence(tokens, len(tokens), SPACE, new)


def steps(policy: str, *, cascade: bool, running: int = 64, waiting: int = 1000, count: int = 600) -> str:
    """A full house: every finished request is replaced by the next in line, and the line is kept long."""
    random = Random(0)
    rule = RULE if cascade else None
    scheduler = Scheduler(
        SchedulerConfig(context_length=8192, max_running=running, policy=policy, cascade=rule),
        CacheManager(CacheConfig(num_slots=65536)),
    )
    for tokens in prompts(running + waiting, random):
        scheduler.add(sequence(tokens, random.randrange(40, 200)))
    samples = []
    for number in range(count + 150):
        while len(scheduler.waiting) < waiting:
            scheduler.add(sequence(prompts(1, random)[0], random.randrange(40, 200)))
        start = time.perf_counter()
        step = scheduler.schedule()
        assert step is not None
        scheduler.complete(step)
        for output in step.outputs:
            if len(output.sequence.token_ids) + 1 < output.sequence.token_limit:
                scheduler.append(output.sequence, [random.randrange(49152)])
            else:
                scheduler.finish(output.sequence)
        if number >= 150:
            samples.append(time.perf_counter() - start)
    name = f"step, {running} running, {waiting} waiting, {policy}{', cascade' if cascade else ''}"
    return percentiles(name, "ms", samples, 1e3)


def decode(running: int, count: int = 1000) -> str:
    """Nothing but decodes: what a step costs beside the model."""
    random = Random(0)
    scheduler = Scheduler(
        SchedulerConfig(context_length=8192, max_running=running, cascade=RULE),
        CacheManager(CacheConfig(num_slots=65536 * 4)),
    )
    head = random.choices(range(49152), k=500)
    for _ in range(running):
        scheduler.add(sequence(head + random.choices(range(49152), k=12), count + 100))
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        step = scheduler.schedule()
        assert step is not None
        scheduler.complete(step)
        for output in step.outputs:
            scheduler.append(output.sequence, [5])
        samples.append(time.perf_counter() - start)
    return percentiles(f"decode step, {running} running, 512 to 1,500 tokens each", "us", samples[100:], 1e6)


def prompt_cost(length: int, share: float) -> str:
    """From token ids to a locked row, and back into the tree: encode, match, open, publish, release."""
    random = Random(1)
    cache = CacheManager(CacheConfig(num_slots=300 * length))
    head = random.choices(range(49152), k=int(length * share))
    samples = []
    for _ in range(200):
        tokens = head + random.choices(range(49152), k=length - len(head))
        start = time.perf_counter()
        key = keys.encode(tokens)
        match = cache.match(SPACE, key, length - 1)
        found = 0 if match is None else match.length
        row = cache.open_row(SPACE, match, length - found, keep_free=0, hit=True)
        assert row is not None
        cache.release(row, key, length)
        samples.append(time.perf_counter() - start)
    return percentiles(f"match + insert, {length} tokens, {share:.0%} known", "us", samples[1:], 1e6)


def eviction_cost(leaves: int) -> str:
    """Per leaf, with many leaves in the heap."""
    cache = CacheManager(CacheConfig(num_slots=leaves * 4))
    random = Random(2)
    for number in range(leaves):
        key = keys.encode([number // 100, number, 1, 2])
        match = cache.match(SPACE, key, 3)
        row = cache.open_row(SPACE, match, 4 - (match.length if match else 0), keep_free=0, hit=True)
        assert row is not None
        cache.release(row, key, 4)
    samples = []
    for _ in range(min(leaves, 2000)):
        start = time.perf_counter()
        cache.evict(random.randrange(1, 4))
        samples.append(time.perf_counter() - start)
    return percentiles(f"evict up to 3 tokens, {leaves} leaves", "us", samples, 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="show where the time of the lpm steps goes")
    arguments = parser.parse_args()
    if arguments.profile:
        profile = cProfile.Profile()
        profile.runcall(steps, "lpm", cascade=True)
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
        return
    benchmarks: list[Callable[[], str]] = [
        lambda: steps("fcfs", cascade=False),
        lambda: steps("lpm", cascade=False),
        lambda: steps("lpm", cascade=True),
        lambda: steps("dfs-weight", cascade=True),
        *(partial(decode, running) for running in (1, 16, 64)),
        lambda: prompt_cost(4000, 0.0),
        lambda: prompt_cost(4000, 0.95),
        lambda: eviction_cost(1000),
        lambda: eviction_cost(100_000),
    ]
    for benchmark in benchmarks:
        print(benchmark(), flush=True)


if __name__ == "__main__":
    main()
