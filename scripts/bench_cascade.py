"""A decode step of several branches on one long prefix: attention to the shared part together against one by one.

    python scripts/bench_cascade.py [--dtype bfloat16[+int8kv]] [--prefix 4000] [--branches 2,4,8,16]

Both plans of a point are run in turns; medians, and the ratio of the whole steps. The rule is the one of the runtime.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from kv_variants import fill, split_dtype

from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_checkpoint
from lmprog_runtime.runtime import cascade_rule
from lmprog_runtime.step import ALL_KEYS, AttentionPlan, StepBatch

OWN = 64  # tokens of each branch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prefix", type=int, default=4000)
    parser.add_argument("--branches", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    files = resolve_model("smollm2-135m")
    spec = read_spec(files.directory)
    slots = arguments.prefix + OWN * max(arguments.branches)
    dtype, int8_kv = split_dtype(arguments.dtype)
    executor = CpuExecutor(
        spec,
        open_checkpoint(files, spec),
        num_slots=slots,
        dtype=dtype,
        threads=arguments.threads,
        int8_kv=int8_kv,
    )
    rule = cascade_rule(executor)
    assert rule is not None
    fill(executor, 0.3)
    for branches in arguments.branches:
        apart, together = step_of(branches, arguments.prefix, 0), step_of(branches, arguments.prefix, rule.alignment)
        times = measure(executor, [apart, together], arguments.rounds)
        difference = (executor.step(apart) - executor.step(together)).abs().max().item()
        choice = "together" if rule.pays(branches, arguments.prefix) else "one by one"
        print(
            f"{branches} branches on {arguments.prefix} tokens, {arguments.dtype}: one by one {times[0] * 1e3:.1f} ms, "
            f"together {times[1] * 1e3:.1f} ms, ratio {times[0] / times[1]:.2f}, logits differ by {difference:.1g}; "
            f"the rule says {choice}"
        )


def step_of(branches: int, prefix: int, alignment: int) -> StepBatch:
    """One new token per branch. `alignment` 0: every branch attends on its own."""
    shared = prefix - prefix % alignment if alignment else 0
    keys = [np.arange(shared, dtype=np.int32)] if shared else []
    items = [(0, branches, 0, shared, ALL_KEYS, 0)] if shared else []
    slots = []
    for branch in range(branches):
        own = prefix + branch * OWN + np.arange(OWN, dtype=np.int32)
        private = np.concatenate([np.arange(shared, prefix, dtype=np.int32), own])
        items.append((branch, 1, sum(map(len, keys)), len(private), ALL_KEYS, shared))
        keys.append(private)
        slots.append(own[-1])
    rows = np.arange(branches, dtype=np.int32)
    plan = AttentionPlan(np.concatenate(keys), np.array(items, np.int32))
    positions = np.full(branches, prefix + OWN - 1, np.int32)
    return StepBatch(rows + 100, positions, np.array(slots, np.int32), rows, plan)


def measure(executor: CpuExecutor, steps: list[StepBatch], rounds: int) -> list[float]:
    """Median seconds of each, in turns."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for index, step in enumerate(steps):
            started = time.perf_counter()
            executor.step(step)
            times[index].append(time.perf_counter() - started)
    return [statistics.median(each) for each in times]


if __name__ == "__main__":
    main()
