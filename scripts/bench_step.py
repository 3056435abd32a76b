"""Times single steps of the CPU executor and compares them with what the machine can do.

    python scripts/bench_step.py [--model NAME | --shape NAME] [--dtypes bfloat16,int8,int4] [--points prefill512,...]
    python scripts/bench_step.py --report     markdown: these, the parts of an engine's step, shared prefixes

A dtype may end in "+int8kv": the same weights over a KV pool in int8.

Every round measures memory bandwidth and arithmetic from registers, then each point; the share of the floor is taken
within a round, because both swing with the neighbours of a virtual machine; the dtypes take turns within a round as
well. Of a point's rounds, those in which other processes used the cores least are kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any, NamedTuple

import numpy as np
import step_cascade
import step_parts
import torch
from kv_variants import fill, split_dtype
from torch import Tensor

from lmprog_kernels.cpu.floors import FloorMeter, Floors
from lmprog_kernels.cpu.library import load_library
from lmprog_kernels.cpu.packing import packed_bytes
from lmprog_kernels.cpu.structs import PHASES
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import ModelSpec, make_spec, read_spec
from lmprog_runtime.model.weights import LayerWeights, open_checkpoint
from lmprog_runtime.step import AttentionPlan, Int32Array, StepBatch

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
    executors = {dtype: load(arguments, dtype) for dtype in arguments.dtypes}
    lines = report(executors, *run_rounds(arguments, executors))
    print("\n".join(lines), flush=True)
    if arguments.phases:
        for dtype, executor in executors.items():
            print_phases(dtype, executor, make_batches(arguments, executor))
    if arguments.report:
        threads = next(iter(executors.values())).decoder.threads
        executors.clear()
        for dtype in arguments.dtypes:
            lines = step_parts.table(arguments.model, dtype, threads=threads)
            print("\n".join(["", f"An engine's decode steps, {dtype}:", "", *lines]), flush=True)
        print("\n".join(["", *step_cascade.table(threads)]))


Runs = dict[str, dict[str, list[Run]]]  # dtype, point


def run_rounds(arguments: argparse.Namespace, executors: dict[str, CpuExecutor]) -> tuple[Runs, list[Floors]]:
    first = next(iter(executors.values()))
    arithmetic = "float32" if arguments.dtypes == ["float32"] else "bfloat16"
    meter = FloorMeter(load_library(arguments.level), arithmetic, first.decoder.threads)
    batches = make_batches(arguments, first)
    runs: Runs = {dtype: {name: [] for name in batches} for dtype in executors}
    floors: list[Floors] = []
    for _ in range(arguments.rounds):
        floors.append(meter.measure())
        for name, batch in batches.items():
            for dtype, executor in executors.items():
                runs[dtype][name].append(measure(executor, batch, meter, floors))
    return runs, floors


def make_batches(arguments: argparse.Namespace, executor: CpuExecutor) -> dict[str, StepBatch]:
    return {name: make_batch(name, executor.spec, scattered=arguments.scattered) for name in arguments.points}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this shape instead of a model")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bfloat16", "int8", "int4"])
    parser.add_argument("--points", type=lambda text: text.split(","), default=list(POINTS))
    parser.add_argument("--report", action="store_true", help="also the parts of an engine's step, and shared prefixes")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--level")
    parser.add_argument("--scattered", action="store_true", help="slots in random order instead of runs")
    parser.add_argument("--phases", action="store_true", help="also print where the time goes")
    return parser.parse_args()


def load(arguments: argparse.Namespace, dtype: str) -> CpuExecutor:
    if arguments.shape:
        spec = make_spec(SHAPES[arguments.shape])
        weights: Any = RandomWeights(spec)
    else:
        files = resolve_model(arguments.model)
        spec = read_spec(files.directory)
        weights = open_checkpoint(files, spec)
    weights_dtype, int8_kv = split_dtype(dtype)
    executor = CpuExecutor(spec, weights, num_slots=40 * CONTEXT, dtype=weights_dtype, threads=arguments.threads,
                           int8_kv=int8_kv, level=arguments.level)  # fmt: skip
    fill(executor)
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
    slots: list[Int32Array] = []
    keys: list[Int32Array] = []
    positions: list[int] = []
    items, last = [], []
    for cached, new in work:
        taken, pool = pool[: cached + new], pool[cached + new :]
        items.append((len(positions), new, sum(len(part) for part in keys), cached + new, cached, 0))
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
    times: list[float] = []
    busy, own, start = busy_seconds(), time.process_time(), time.perf_counter()
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


def report(executors: dict[str, CpuExecutor], runs: Runs, floors: list[Floors]) -> list[str]:
    """Lines of markdown. int8 and int4 are compared with the floor of their own bytes and of bf16 arithmetic."""
    first = next(iter(executors.values()))
    rates = [statistics.median(values) / 1e9 for values in zip(*floors, strict=True)]
    best = [max(values) / 1e9 for values in zip(*floors, strict=True)]
    lines = [
        f"{first.spec.family}, {first.decoder.level}, {first.decoder.threads} threads; median (best): memory read "
        f"{rates[0]:.1f} ({best[0]:.1f}) GB/s, bf16 {rates[1]:.0f} ({best[1]:.0f}) GFLOP/s",
        "",
        "| step | dtype | ms | fastest | tokens/s | of the floor | against the first dtype | others used |",
        "|---|---|---|---|---|---|---|---|",
    ]
    compared = next(iter(executors))
    for name in runs[compared]:
        reference = quiet(runs[compared][name]).seconds
        for dtype in executors:
            run, fastest = quiet(runs[dtype][name]), min(run.seconds for run in runs[dtype][name])
            rows = len(make_batch(name, first.spec, scattered=False).tokens)
            lines.append(
                f"| {name} | {dtype} | {run.seconds * 1e3:.2f} | {fastest * 1e3:.2f} | {rows / run.seconds:.0f} | "
                f"{run.share:.0%} | {reference / run.seconds:.2f} | {run.foreign:.0%} |"
            )
    return lines


def quiet(runs: list[Run]) -> Run:
    """Medians over the half of the runs in which others used the cores least."""
    kept = sorted(runs, key=lambda run: run.foreign)[: max(2, len(runs) // 2)]
    return Run(*(statistics.median(values) for values in zip(*kept, strict=True)))


def print_phases(dtype: str, executor: CpuExecutor, batches: dict[str, StepBatch]) -> None:
    for name, batch in batches.items():
        executor.decoder.phase_seconds = seconds = np.zeros(len(PHASES))
        steps = max(3, int(500 / len(batch.tokens)))
        for _ in range(steps):
            executor.step(batch)
        parts = (f"{phase} {s / steps * 1e3:.2f}" for phase, s in zip(PHASES, seconds, strict=True))
        print(f"{name} {dtype} ms: " + "  ".join(parts))


if __name__ == "__main__":
    main()
