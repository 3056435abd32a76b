"""Seconds to the first token of a prompt of 2,000 tokens: cold, after a restart from files, and warm.

python scripts/bench_restart.py [--tokens 2000] [--dtype auto] [--codec raw]
"""

from __future__ import annotations

import argparse
import time
from random import Random
from tempfile import TemporaryDirectory

import torch

from lmprog_runtime.cache import CacheConfig, CacheManager, TierConfig, Tiers
from lmprog_runtime.model.executor import Executor, load_executor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.scheduler import Scheduler, SchedulerConfig, Sequence


def first_token(executor: Executor, cache: CacheManager, tokens: list[int]) -> tuple[float, int, torch.Tensor]:
    """Seconds, tokens not computed, logits."""
    scheduler = Scheduler(SchedulerConfig(context_length=executor.context_length), cache)
    sequence = Sequence(list(tokens), len(tokens), ("bench", None, None), 1)
    start = time.perf_counter()
    scheduler.add(sequence)
    while True:
        step = scheduler.schedule()
        assert step is not None
        logits = executor.step(step.batch)
        scheduler.complete(step)
        if step.outputs:
            scheduler.finish(sequence)
            return time.perf_counter() - start, sequence.cached_tokens, logits[-1].clone()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--codec", default="raw", help="raw, bfloat16 or int8")
    arguments = parser.parse_args()
    executor = load_executor(resolve_model("smollm2-135m"), dtype=arguments.dtype, num_slots=8192)
    tokens = Random(0).choices(range(100, 40_000), k=arguments.tokens)
    first_token(executor, CacheManager(CacheConfig(num_slots=8192)), tokens[:200])  # warm up threads and memory
    with TemporaryDirectory() as directory:
        config = TierConfig(directory=directory, codec=arguments.codec)
        caches = [CacheManager(CacheConfig(num_slots=8192), tiers=Tiers(config, executor)) for _ in range(2)]
        cold, _, expected = first_token(executor, caches[0], tokens)
        start = time.perf_counter()
        caches[0].close()
        print(f"{executor.name} {executor.dtype}, {arguments.tokens} tokens, files hold {arguments.codec}")
        print(f"cold            {cold:7.3f} s     written in {time.perf_counter() - start:.3f} s")
        for name, cache in (("after a restart", caches[1]), ("warm", caches[1])):
            seconds, cached, logits = first_token(executor, cache, tokens)
            worst = (logits - expected).abs().max().item()
            print(f"{name:<15} {seconds:7.3f} s     {cached} tokens reused, largest difference of a logit {worst:.1e}")
        caches[1].close()


if __name__ == "__main__":
    main()
