"""A decode step of several branches on one long prefix: attention to the shared part together against one by one.

    python scripts/bench_cascade.py [--dtype bfloat16[+int8kv]] [--prefix 4000] [--branches 2,4,8,16]
    python scripts/bench_cascade.py --grid [--dtype bfloat16[+int8kv]]

Both plans of a point are run in turns; medians, and the ratio of the whole steps. The rule is the one of the runtime.

--grid: attention alone, of 2 to 32 branches with 16 or 128 tokens of their own on 256 to 4,096 shared ones (fewer than
the 256 of a chunk of keys are never attended to together), one new token each, then of fewer branches with several new
tokens each; and where the rule errs: it groups what is more than 2 % slower together, or leaves apart what is more than
5 % faster together. Points where it seems to err, or nearly, are measured again with five times the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import NamedTuple

import numpy as np
from kv_variants import fill, split_dtype
from numpy.typing import NDArray

from lmprog_kernels.cpu.structs import PHASES
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_checkpoint
from lmprog_runtime.runtime import cascade_rule
from lmprog_runtime.scheduler.cascade import CascadeRule
from lmprog_runtime.step import ALL_KEYS, AttentionPlan, StepBatch

OWN = 64  # tokens of each branch
ATTENTION = slice(PHASES.index("attend"), PHASES.index("merge") + 1)


class Point(NamedTuple):
    branches: int
    prefix: int
    own: int  # tokens of each branch
    new: int  # of them, the last, in this step


PREFIXES = (256, 512, 768, 1024, 1536, 2048, 4096)
GRID = [
    *(Point(*point, 1) for point in itertools.product((2, 4, 8, 16, 32), PREFIXES, (16, 128))),
    *(Point(*point, 48, new) for new in (2, 4, 8, 40) for point in itertools.product((2, 4, 12), (256, 512, 1024))),
]
SLOWER, FASTER, NEAR = 0.98, 1.05, 0.01  # ratios that are errors of the rule, and how near to them is not sure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prefix", type=int, default=4000)
    parser.add_argument("--branches", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--grid", action="store_true")
    arguments = parser.parse_args()
    points = GRID if arguments.grid else [Point(n, arguments.prefix, OWN, 1) for n in arguments.branches]
    executor = open_executor(arguments, max(point.prefix + point.branches * point.own for point in points))
    rule = cascade_rule(executor)
    assert rule is not None
    if arguments.grid:
        print_grid(executor, rule, arguments.rounds)
    else:
        print_steps(executor, rule, points, arguments)


def open_executor(arguments: argparse.Namespace, slots: int) -> CpuExecutor:
    files = resolve_model("smollm2-135m")
    spec = read_spec(files.directory)
    dtype, int8_kv = split_dtype(arguments.dtype)
    weights = open_checkpoint(files, spec)
    executor = CpuExecutor(spec, weights, num_slots=slots, dtype=dtype, threads=arguments.threads, int8_kv=int8_kv)
    fill(executor, 0.3)
    return executor


def print_steps(executor: CpuExecutor, rule: CascadeRule, points: list[Point], arguments: argparse.Namespace) -> None:
    for point in points:
        apart, together = step_of(point, 0), step_of(point, rule.alignment)
        times = measure(executor, [apart, together], arguments.rounds)
        difference = (executor.step(apart) - executor.step(together)).abs().max().item()
        print(
            f"{point.branches} branches on {point.prefix} tokens, {arguments.dtype}: one by one {times[0] * 1e3:.1f}, "
            f"together {times[1] * 1e3:.1f} ms, ratio {times[0] / times[1]:.2f}, logits differ by {difference:.1g}; "
            f"the rule says {'together' if pays(rule, point) else 'one by one'}"
        )


def pays(rule: CascadeRule, point: Point) -> bool:
    shared = point.prefix - point.prefix % rule.alignment
    return rule.takes(point.new) and rule.pays(point.branches, point.branches * point.new, shared)


def step_of(point: Point, alignment: int) -> StepBatch:
    """The new tokens of all branches. `alignment` 0: every branch attends on its own."""
    branches, prefix, own_tokens, new = point
    shared = prefix - prefix % alignment if alignment else 0
    keys = [np.arange(shared, dtype=np.int32)] if shared else []
    items = [(0, branches * new, 0, shared, ALL_KEYS, 0)] if shared else []
    slots = []
    for branch in range(branches):
        own = prefix + branch * own_tokens + np.arange(own_tokens, dtype=np.int32)
        private = np.concatenate([np.arange(shared, prefix, dtype=np.int32), own])
        items.append((branch * new, new, sum(map(len, keys)), len(private), len(private) - new, shared))
        keys.append(private)
        slots.append(own[-new:])
    rows = np.arange(branches * new, dtype=np.int32)
    plan = AttentionPlan(np.concatenate(keys), np.array(items, np.int32))
    positions = prefix + own_tokens - new + rows % new
    return StepBatch(rows + 100, positions, np.concatenate(slots), rows[new - 1 :: new], plan)


def measure(executor: CpuExecutor, steps: list[StepBatch], rounds: int) -> list[float]:
    """Median seconds of each, in turns."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for index, step in enumerate(steps):
            started = time.perf_counter()
            executor.step(step)
            times[index].append(time.perf_counter() - started)
    return [statistics.median(each) for each in times]


def phases(executor: CpuExecutor, step: StepBatch) -> NDArray[np.float64]:
    """Milliseconds of each part of a step."""
    executor.decoder.phase_seconds = seconds = np.zeros(len(PHASES))
    executor.step(step)
    return seconds * 1e3


class Attention(NamedTuple):
    """Medians over rounds; the ratio is that of each round's two."""

    apart: float  # milliseconds
    together: float
    ratio: float


def print_grid(executor: CpuExecutor, rule: CascadeRule, rounds: int) -> None:
    errors = []
    for point in GRID:
        groups = pays(rule, point)
        found = attention(executor, rule, point, rounds)
        if is_error(groups, found.ratio, NEAR):
            found = attention(executor, rule, point, 5 * rounds)
        line = (
            f"{point.branches:2} branches on {point.prefix:4} tokens, {point.new:2} of {point.own:3} own ones new: "
            f"one by one {found.apart:6.2f} ms, together {found.together:6.2f}, ratio {found.ratio:.2f}; "
            f"the rule says {'together' if groups else 'one by one'}"
        )
        print(line, flush=True)
        if is_error(groups, found.ratio):
            errors.append(line)
    print("\n".join(["", f"the rule errs at {len(errors)} of {len(GRID)} points:", *errors]))


def attention(executor: CpuExecutor, rule: CascadeRule, point: Point, rounds: int) -> Attention:
    steps = [step_of(point, cut) for cut in (0, rule.alignment)]
    times = [[phases(executor, step)[ATTENTION].sum() for step in steps] for _ in range(rounds)]
    apart, together = (statistics.median(each) for each in zip(*times, strict=True))
    return Attention(apart, together, statistics.median(a / b for a, b in times))


def is_error(groups: bool, ratio: float, near: float = 0.0) -> bool:
    """Of a rule that groups, or does not, where attention together is `ratio` times as fast."""
    return ratio < SLOWER + near if groups else ratio > FASTER - near


if __name__ == "__main__":
    main()
