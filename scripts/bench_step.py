"""Times single steps of the CPU executor and compares them with what the machine can do.

    python scripts/bench_step.py [--model NAME | --shape NAME] [--dtype bfloat16] [--points prefill512,decode1,...]

Every round measures memory bandwidth and arithmetic from registers, then each point; the share of the floor is taken
within a round, because both swing with the neighbours of a virtual machine. Of a point's rounds, those in which other
processes used the cores least are kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmprog_kernels.cpu.floors import FloorMeter, Floors
from lmprog_kernels.cpu.library import load_library
from lmprog_kernels.cpu.packing import packed_bytes
from lmprog_kernels.cpu.structs import PHASES
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import ModelSpec, make_spec, read_spec
from lmprog_runtime.model.weights import LayerWeights, open_weights
from lmprog_runtime.step import AttentionPlan, StepBatch

CONTEXT = 512
POINTS = ("prefill512", "decode1", "decode8", "decode32", "mixed")
SHAPES = {
    "qwen2.5-0.5b": {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
                     "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                     "tie_word_embeddings": True},
    "llama-3.2-1b": {"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
                     "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
                     "tie_word_embeddings": True},
}  # fmt: skip


class Run(NamedTuple):
    seconds: float
    share: float  # of the floor
    foreign: float  # share of the cores that other processes used


class RandomWeights:
    """Weights of a shape whose checkpoint is not at hand."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._embedding = self._matrix(spec.vocab_size, spec.hidden_size)

    def _matrix(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02)

    def embedding(self) -> Tensor:
        return self._embedding

    head = embedding

    def final_norm(self) -> Tensor:
        return torch.ones(self._spec.hidden_size)

    def layer(self, index: int) -> LayerWeights:
        del index  # all layers alike
        spec, ones = self._spec, torch.ones(self._spec.hidden_size)
        mixed, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        bias = self._matrix(mixed + 2 * kv) if spec.qkv_bias else None
        matrix, hidden, inner = self._matrix, spec.hidden_size, spec.intermediate_size
        return LayerWeights(ones, matrix(mixed + 2 * kv, hidden), bias, None, None, matrix(hidden, mixed), None, None,
                            ones, matrix(2 * inner, hidden), None, matrix(hidden, inner), None, None)  # fmt: skip


def main() -> None:
    arguments = parse()
    executor = load(arguments)
    if arguments.phases:
        executor.decoder.phase_seconds = np.zeros(len(PHASES))
    meter = FloorMeter(load_library(arguments.level), "float32" if arguments.dtype == "float32" else "bfloat16",
                       executor.decoder.threads)  # fmt: skip
    batches = {name: make_batch(name, executor.spec, scattered=arguments.scattered) for name in arguments.points}
    runs: dict[str, list[Run]] = {name: [] for name in batches}
    floors = []
    for _ in range(arguments.rounds):
        floors.append(meter.measure())
        for name, batch in batches.items():
            runs[name].append(measure(executor, batch, meter, floors))
    report(executor, batches, runs, floors)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead of a model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--points", type=lambda text: text.split(","), default=list(POINTS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--level")
    parser.add_argument("--scattered", action="store_true", help="slots in random order instead of runs")
    parser.add_argument("--phases", action="store_true", help="also print where the time goes")
    return parser.parse_args()


def load(arguments: argparse.Namespace) -> CpuExecutor:
    if arguments.shape:
        spec = make_spec(SHAPES[arguments.shape])
        weights = RandomWeights(spec)
    else:
        files = resolve_model(arguments.model)
        spec = read_spec(files.directory)
        weights = open_weights(files.directory, spec)
    executor = CpuExecutor(spec, weights, num_slots=40 * CONTEXT, dtype=arguments.dtype, threads=arguments.threads,
                           level=arguments.level)  # fmt: skip
    kv = executor.decoder.kv  # random contents: untouched pages would all be one page of zeros
    patterns = torch.randn(kv.shape[1], kv.shape[2] // executor.decoder.kv_dtype.itemsize)
    kv[:] = patterns.to(executor.decoder.kv_dtype).view(torch.uint8).numpy()
    return executor


def make_batch(name: str, spec: ModelSpec, *, scattered: bool) -> StepBatch:
    """prefillN, decodeN (N requests at a context of 512), or mixed: eight decodes and 120 tokens after 392."""
    if name == "mixed":
        work = [(CONTEXT - 1, 1)] * 8 + [(392, 120)]
    elif name.startswith("decode"):
        work = [(CONTEXT - 1, 1)] * int(name.removeprefix("decode"))
    else:
        work = [(0, int(name.removeprefix("prefill")))]
    generator = np.random.default_rng(0)
    pool = np.arange(40 * CONTEXT, dtype=np.int32)
    pool = generator.permutation(pool) if scattered else pool
    slots, keys, positions, items, last = [], [], [], [], []
    for cached, new in work:
        taken, pool = pool[: cached + new], pool[cached + new :]
        items.append((len(positions), new, sum(map(len, keys)), cached + new, cached, 0))
        keys.append(taken)
        slots.append(taken[cached:])
        positions += range(cached, cached + new)
        last.append(len(positions) - 1)
    tokens = generator.integers(3, spec.vocab_size, len(positions)).astype(np.int32)
    plan = AttentionPlan(np.concatenate(keys), np.array(items, np.int32))
    return StepBatch(tokens, np.array(positions, np.int32), np.concatenate(slots), np.array(last, np.int32), plan)


def measure(executor: CpuExecutor, batch: StepBatch, meter: FloorMeter, floors: list[Floors]) -> Run:
    """Steps for half a second, between two measurements of the floor."""
    executor.step(batch)
    busy, own, start, times = busy_seconds(), time.process_time(), time.perf_counter(), []
    while len(times) < 2 or time.perf_counter() - start < 0.5:
        begin = time.perf_counter()
        executor.step(batch)
        times.append(time.perf_counter() - begin)
    wall = time.perf_counter() - start
    foreign = (busy_seconds() - busy - (time.process_time() - own)) / (wall * (os.cpu_count() or 1))
    floors.append(meter.measure())
    seconds = statistics.median(times)
    best = Floors(*(max(a, b) for a, b in zip(floors[-1], floors[-2], strict=True)))
    return Run(seconds, floor_seconds(executor, batch, best) / seconds, foreign)


def busy_seconds() -> float:
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


def floor_seconds(executor: CpuExecutor, batch: StepBatch, floors: Floors) -> float:
    """The larger of: reading all weights and keys once, and all multiply-adds."""
    num_bytes, flops = step_work(executor, batch)
    return max(num_bytes / floors.bytes_per_second, flops / floors.flops_per_second)


def step_work(executor: CpuExecutor, batch: StepBatch) -> tuple[float, float]:
    spec, rows, outputs = executor.spec, len(batch.tokens), len(batch.logit_rows)
    mixed = spec.num_heads * spec.head_dim
    layer = spec.hidden_size * (2 * mixed + 2 * spec.num_kv_heads * spec.head_dim + 3 * spec.intermediate_size)
    head = spec.hidden_size * spec.vocab_size
    library = load_library(executor.decoder.level)
    weights = packed_bytes(library, executor.dtype, 32, 32 * ((layer * spec.num_layers + head) // 1024))
    pairs = sum(min(count, diagonal + 1 + row) for _, rows_, _, count, diagonal, _ in batch.plan.items.tolist()
                for row in range(rows_))  # fmt: skip
    flops = 2 * (layer * spec.num_layers * rows + head * outputs) + 4 * mixed * spec.num_layers * pairs
    return weights + len(batch.plan.key_slots) * executor.decoder.kv[:, 0].nbytes, flops


def report(
    executor: CpuExecutor, batches: dict[str, StepBatch], runs: dict[str, list[Run]], floors: list[Floors]
) -> None:
    rates = [statistics.median(values) / 1e9 for values in zip(*floors, strict=True)]
    best = [max(values) / 1e9 for values in zip(*floors, strict=True)]
    print(f"{executor.spec.family} {executor.dtype} {executor.decoder.level}, {executor.decoder.threads} threads; "
          f"median (best): read {rates[0]:.1f} ({best[0]:.1f}) GB/s, "
          f"{rates[1]:.0f} ({best[1]:.0f}) GFLOP/s")  # fmt: skip
    for name, batch in batches.items():
        kept = sorted(runs[name], key=lambda run: run.foreign)[: max(2, len(runs[name]) // 2)]
        seconds = statistics.median(run.seconds for run in kept)
        share = statistics.median(run.share for run in kept)
        fastest = min(run.seconds for run in runs[name])
        tokens = len(batch.tokens)
        print(f"{name:11} {seconds * 1e3:8.2f} ms (fastest {fastest * 1e3:.2f})  {tokens / seconds:7.0f} tok/s"
              f"  {share:5.0%} of the floor; others used {max(run.foreign for run in kept):.0%}")  # fmt: skip
        if executor.decoder.phase_seconds is not None:
            print_phases(executor, batch)


def print_phases(executor: CpuExecutor, batch: StepBatch) -> None:
    executor.decoder.phase_seconds = seconds = np.zeros(len(PHASES))
    steps = max(3, int(500 / len(batch.tokens)))
    for _ in range(steps):
        executor.step(batch)
    print(
        "            ms: " + "  ".join(f"{name} {s / steps * 1e3:.2f}" for name, s in zip(PHASES, seconds, strict=True))
    )


if __name__ == "__main__":
    main()
