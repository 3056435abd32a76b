"""Sharing workloads, lmprog beside transformers in one interleaved run: seconds, and how many times faster.

    python scripts/bench_workloads.py [--scale 0.25] [--rounds 3] [--dtype bfloat16]

Shapes (scale 1): few-shot 64 requests on 1,000 shared tokens, 16 out; choices 32 questions x 4 of 6 tokens on a 500
token prefix; fork 16 branches on 800 tokens, 32 out; one stream 128 + 128. Token ids are random by seed, equal for both
sides. transformers runs generate (sdpa, its own KV cache) in batches of 8, and one forward pass per batch of 8 joint
texts for choices. The cache of lmprog is emptied before each round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from lmprog_runtime.harness.batch import run_batch
from lmprog_runtime.request import GenerateRequest, SamplingParams, ScoreRequest
from lmprog_runtime.runtime import LocalRuntime

BATCH = 8


class Workload(NamedTuple):
    name: str
    prompts: list[list[int]]
    new_tokens: int
    choices: list[list[list[int]]]  # per prompt; empty: generate


def make_workloads(scale: float, vocab: int) -> list[Workload]:
    source = np.random.default_rng(7)

    def ids(count: float) -> list[int]:
        return source.integers(100, vocab - 100, max(1, int(count))).tolist()

    def count(number: int) -> int:
        return max(2, int(number * scale))

    shared, prefix, trunk = ids(1000 * scale), ids(500 * scale), ids(800 * scale)
    questions = [prefix + ids(40) for _ in range(count(32))]
    return [
        Workload("few-shot", [shared + ids(40) for _ in range(count(64))], 16, []),
        Workload("choices", questions, 0, [[ids(6) for _ in range(4)] for _ in questions]),
        Workload("fork", [trunk + ids(4) for _ in range(count(16))], 32, []),
        Workload("one stream", [ids(128)], 128, []),
    ]


def ours(runtime: LocalRuntime, work: Workload) -> None:
    runtime.flush_cache()
    params = SamplingParams(max_tokens=max(1, work.new_tokens), temperature=0.0, ignore_eos=True)
    requests: list[Any] = [GenerateRequest(prompt, params) for prompt in work.prompts]
    if work.choices:
        requests = [ScoreRequest(prompt, some) for prompt, some in zip(work.prompts, work.choices, strict=True)]
    run_batch(runtime.engine, requests, description=work.name, quiet=True)


def transformers_side(model: Any, work: Workload) -> None:
    texts = work.prompts
    if work.choices:
        texts = [p + choice for p, some in zip(work.prompts, work.choices, strict=True) for choice in some]
    for start in range(0, len(texts), BATCH):
        batch = torch.tensor(texts[start : start + BATCH])
        with torch.no_grad():
            if work.choices:
                model(batch)
            else:
                mask = torch.ones_like(batch)
                length = work.new_tokens
                model.generate(
                    batch,
                    attention_mask=mask,
                    max_new_tokens=length,
                    min_new_tokens=length,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )


def timed(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    from transformers import AutoModelForCausalLM

    runtime = LocalRuntime.start(model=options.model, dtype=options.dtype)
    dtype = getattr(torch, options.dtype, torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(runtime.files.directory, dtype=dtype).eval()
    print(f"{options.model}, {runtime.info()['executor']} executor, {options.dtype}, {torch.get_num_threads()} threads")
    print(f"{'workload':12} {'lmprog s':>9} {'transformers s':>15} {'ratio':>7}")
    for work in make_workloads(options.scale, runtime.executor.vocab_size):
        pairs = []
        for _ in range(options.rounds):
            pairs.append((timed(lambda: ours(runtime, work)), timed(lambda: transformers_side(model, work))))  # noqa: B023
        mine, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{work.name:12} {mine:9.2f} {theirs:15.2f} {theirs / mine:6.1f}x", flush=True)
    runtime.close()


if __name__ == "__main__":
    main()
