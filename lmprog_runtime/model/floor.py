"""How near the CPU executor comes to the machine's limits, measured in a few seconds.

The floor of a step is the larger of two times: to read all weights and keys once from memory, and to do all
multiply-adds out of registers. Both rates are measured before and after each step, as neighbours on a shared machine
change them from second to second.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import numpy as np

from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.plain_batch import Part, plain_batch
from lmprog_runtime.ops.native import FloorMeter, Floors, load_library
from lmprog_runtime.step import StepBatch

CONTEXT = 512  # tokens of each sequence
DECODES = (1, 8)  # sequences
NUM_SLOTS = CONTEXT * max(DECODES)
SECONDS = 0.2  # of steps in each of the rounds
_ROUNDS = 3


class Speed(NamedTuple):
    """Of one kind of step."""

    name: str
    tokens_per_second: float
    share: float  # of the floor: 1 is as fast as the machine can
    limit: str  # "memory" or "arithmetic": which of the two makes the floor


def measure_floors(executor: CpuExecutor) -> tuple[Floors, list[Speed]]:
    """The machine's rates, and the speed of a prompt and of answers side by side. The executor needs NUM_SLOTS slots,
    whose contents are lost."""
    executor.decoder.kv[:, :NUM_SLOTS] = np.random.default_rng(0).integers(
        0, 60, executor.decoder.kv.shape[2], np.uint8
    )
    library = load_library(executor.decoder.level)
    meter = FloorMeter(library, arithmetic_dtype(executor), executor.decoder.threads)
    floors: list[Floors] = [meter.measure()]
    speeds = [_measure(name, executor, batch, meter, floors) for name, batch in _batches(executor).items()]
    return Floors(*(statistics.median(rates) for rates in zip(*floors, strict=True))), speeds


def arithmetic_dtype(executor: CpuExecutor) -> str:
    """What the arithmetic floor is measured in. Products of integers have no floor of their own: they can pass it."""
    return "float32" if executor.dtype == "float32" else "bfloat16"


def _batches(executor: CpuExecutor) -> dict[str, StepBatch]:
    tokens = np.random.default_rng(0).integers(0, executor.vocab_size, CONTEXT).astype(np.int32)
    slots = np.arange(NUM_SLOTS, dtype=np.int32).reshape(-1, CONTEXT)
    prompt = {f"prompt of {CONTEXT}": plain_batch([Part(tokens, slots[0])], last_only=True)}
    return prompt | {
        f"{count} at a time": plain_batch([Part(tokens[:1], row) for row in slots[:count]]) for count in DECODES
    }


def _measure(name: str, executor: CpuExecutor, batch: StepBatch, meter: FloorMeter, floors: list[Floors]) -> Speed:
    rounds = []
    for _ in range(_ROUNDS):
        seconds = _step_seconds(executor, batch)
        floors.append(meter.measure())
        best = Floors(*(max(rates) for rates in zip(*floors[-2:], strict=True)))
        rounds.append((seconds, *_floor_seconds(executor, batch, best)))
    seconds, reading, computing = (statistics.median(values) for values in zip(*rounds, strict=True))
    share = statistics.median(max(floor) / taken for taken, *floor in rounds)
    return Speed(name, len(batch.tokens) / seconds, share, "memory" if reading > computing else "arithmetic")


def _step_seconds(executor: CpuExecutor, batch: StepBatch) -> float:
    executor.step(batch)
    times: list[float] = []
    while not times or sum(times) < SECONDS:
        started = time.perf_counter()
        executor.step(batch)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _floor_seconds(executor: CpuExecutor, batch: StepBatch, floors: Floors) -> tuple[float, float]:
    """(to read, to compute)"""
    num_bytes, flops = step_work(executor, batch)
    return num_bytes / floors.bytes_per_second, flops / floors.flops_per_second


def step_work(executor: CpuExecutor, batch: StepBatch) -> tuple[float, float]:
    """(bytes that must be read, floating-point operations that must be done)"""
    spec, rows, outputs = executor.spec, len(batch.tokens), len(batch.logit_rows)
    mixed = spec.num_heads * spec.head_dim
    layer = spec.hidden_size * (2 * mixed + 2 * spec.num_kv_heads * spec.head_dim + 3 * spec.intermediate_size)
    pairs = sum(
        min(count, diagonal + 1 + row)
        for _, item_rows, _, count, diagonal, _ in batch.plan.items.tolist()
        for row in range(item_rows)
    )
    flops = 2 * (layer * spec.num_layers * rows + spec.hidden_size * spec.vocab_size * outputs)
    attention = 4 * mixed * spec.num_layers * pairs
    keys = len(batch.plan.key_slots) * executor.decoder.kv[:, 0].nbytes
    return executor.packed.memory.used + keys, flops + attention
