"""Attention to a shared prefix: all branches together against one by one, of a decode step with one row per branch."""

from __future__ import annotations

import statistics

import bench_cascade

from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_checkpoint
from lmprog_runtime.runtime import cascade_rule
from lmprog_runtime.step import StepBatch

POINTS = [bench_cascade.Point(*point, 64, 1) for point in ((8, 800), (16, 512), (16, 800), (32, 800), (16, 4000))]


def table(threads: int, model: str = "smollm2-135m", rounds: int = 11) -> list[str]:
    """Lines of a markdown table: milliseconds of attention and of the whole step, medians of runs in turns."""
    files = resolve_model(model)
    spec = read_spec(files.directory)
    slots = max(point.prefix + point.branches * point.own for point in POINTS)
    executor = CpuExecutor(spec, open_checkpoint(files, spec), num_slots=slots, threads=threads)
    rule = cascade_rule(executor)
    assert rule is not None
    bench_cascade.fill(executor)
    lines = [
        "| branches, prefix | attention apart, ms | together | ratio | step apart, ms | together | ratio | rule |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in POINTS:
        apart, together = (bench_cascade.step_of(point, cut) for cut in (0, rule.alignment))
        runs = _runs(executor, apart, together, rounds)
        cells = [_cells([run[kind] for run in runs]) for kind in (0, 1)]
        choice = "together" if bench_cascade.pays(rule, point) else "one by one"
        lines.append(f"| {point.branches}, {point.prefix} | {cells[0]} | {cells[1]} | {choice} |")
    return lines


Times = tuple[float, float]  # one by one, together


def _runs(executor: CpuExecutor, apart: StepBatch, together: StepBatch, rounds: int) -> list[tuple[Times, Times]]:
    """Milliseconds of attention and of the step, for each round."""
    pairs = [[bench_cascade.phases(executor, step) for step in (apart, together)] for _ in range(rounds)]
    attend = bench_cascade.ATTENTION
    return [((a[attend].sum(), b[attend].sum()), (a.sum(), b.sum())) for a, b in pairs]


def _cells(times: list[Times]) -> str:
    one_by_one, together = (statistics.median(values) for values in zip(*times, strict=True))
    ratio = statistics.median(a / b for a, b in times)
    return f"{one_by_one:.1f} | {together:.1f} | {ratio:.2f}"
