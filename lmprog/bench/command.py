"""`lmprog bench programs`: programs with and without prefix cache, forks and jump-forward.

Every setting runs in turn in each round, from an empty cache, on the same weights; numbers are medians over rounds.
On 2 cores, full size (16 runs, 3 rounds) takes about a quarter of an hour, `--count 4 --rounds 1` about two minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lmprog.backends.local import Runtime
from lmprog.bench.data import Source, parse_files
from lmprog.bench.suite import SHOTS, Case, named, suite
from lmprog_runtime.bench import recorder
from lmprog_runtime.bench.recorder import RecordedRuntime
from lmprog_runtime.bench.results import FULL, NO_CACHE, NO_FORKS, NO_JUMP_FORWARD, describe
from lmprog_runtime.bench.serving import append_lines

Round = dict[str, float]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="lmprog bench programs", description=__doc__)
    made.add_argument("--model", default="smollm2-135m")
    made.add_argument("--dtype", default="auto")
    made.add_argument("--threads", type=int, help="CPU threads; default: the number of cores")
    made.add_argument("--max-total-tokens", type=int, default=32768, help="slots of the KV pool")
    made.add_argument("--count", type=int, default=16, help="runs of each program")
    made.add_argument("--shots", type=int, default=SHOTS, help="examples of few-shot programs")
    made.add_argument("--at-a-time", type=int, default=8, help="runs under way")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--programs", nargs="+", default=[], help="only these, by name")
    made.add_argument("--data", action="append", default=[], metavar="KIND=FILE", help="JSON Lines instead of the seed")
    made.add_argument("--output-file", type=Path, help="JSON Lines; the result is appended")
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.data = parse_files(options.data)
    everything = suite(Source(options.seed, options.data), options.count, options.shots)
    cases = named(everything, options.programs)
    settings = {name: getattr(options, name) for name in ("model", "dtype", "threads", "max_total_tokens")}
    with recorder.ablations(**settings) as runtimes:
        result = measure(options, cases, runtimes)
        result |= recorder.context(runtimes[FULL])
    print("\n".join([*table(result["programs"]), describe(result)]))
    if options.output_file:
        append_lines(options.output_file, [result])
    return 0


def measure(options: argparse.Namespace, cases: list[Case], runtimes: dict[str, RecordedRuntime]) -> dict[str, Any]:
    """runtimes: by FULL, NO_CACHE and NO_JUMP_FORWARD."""
    jobs = [(number, case) for number in range(options.rounds) for case in cases]
    rounds: dict[str, dict[str, list[Round]]] = {case.name: {name: [] for name in settings_of(case)} for case in cases}
    with tqdm(total=len(cases) + len(jobs), unit="program", disable=None) as bar:
        for case in cases:
            bar.set_description(f"warm-up, {case.name}")
            run(case._replace(items=case.items[:1]), FULL, runtimes, at_a_time=1)  # makes what is made lazily
            bar.update()
        for number, case in jobs:
            for name, numbers in _round(options, case, number, runtimes, bar):
                rounds[case.name][name].append(numbers)
            bar.update()
    return {
        "kind": "programs",
        "count": options.count,
        "rounds": options.rounds,
        "shots": options.shots,
        "at_a_time": options.at_a_time,
        "data": sorted(options.data),
        "programs": {name: {key: median(some) for key, some in settings.items()} for name, settings in rounds.items()},
    }


def _round(
    options: argparse.Namespace, case: Case, number: int, runtimes: dict[str, RecordedRuntime], bar: Any
) -> list[tuple[str, Round]]:
    """Every setting once, each round with another one first; what came out is told at once."""
    names = settings_of(case)
    start = number % len(names)
    found = []
    for name in [*names[start:], *names[:start]]:
        bar.set_description(f"round {number + 1}, {case.name}, {name}")
        found.append((name, run(case, name, runtimes, at_a_time=options.at_a_time)))
    rates = "; ".join(f"{name} {numbers['programs_per_second']:.2f}/s" for name, numbers in found)
    bar.write(f"round {number + 1}, {case.name}: {rates}", file=sys.stderr)
    return found


def settings_of(case: Case) -> list[str]:
    """Ablations that can change something for this program."""
    return [FULL, NO_CACHE, *([NO_FORKS] if case.forks else []), *([NO_JUMP_FORWARD] if case.constrained else [])]


def run(case: Case, setting: str, runtimes: dict[str, RecordedRuntime], *, at_a_time: int) -> Round:
    """One round of one setting. Raises the first error of a run."""
    recorded = runtimes.get(setting, runtimes[FULL])
    backend = Runtime.over(recorded.runtime)
    more = {"parallel": setting != NO_FORKS} if case.forks else {}
    recorded.restart()
    started = time.perf_counter()
    runs = case.program.run_batch(
        [item | more for item in case.items], backend=backend, num_threads=at_a_time, raise_on_error=True
    )
    for each in runs:
        each.sync()
    seconds = time.perf_counter() - started
    usages = [each.usage for each in runs]
    return {
        "seconds": seconds,
        "programs_per_second": len(runs) / seconds,
        "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
        "cached_tokens": sum(usage.cached_tokens for usage in usages),
        "completion_tokens": sum(usage.completion_tokens for usage in usages),
        "forced_tokens": sum(usage.forced_tokens for usage in usages),
        **recorded.counts(),
    }


def median(rounds: list[Round]) -> Round:
    """Number by number."""
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def table(programs: dict[str, dict[str, Round]]) -> list[str]:
    """A line per program and setting; `gain` is how many times the full setting's rate is that of the ablation."""
    head = f"{'program':<30}{'setting':<17}{'programs/s':>11}{'gain':>7}{'computed':>10}{'hit rate':>10}{'best':>7}"
    lines = [head]
    for name, settings in programs.items():
        full = settings[FULL]["programs_per_second"]
        for setting, numbers in settings.items():
            gain = f"{full / numbers['programs_per_second']:.2f}x"
            best = f"{numbers['best_hit_rate']:.1%}"
            cells = f"{numbers['programs_per_second']:>11.2f}{gain:>7}{numbers['computed_tokens']:>10.0f}"
            lines.append(f"{name:<30}{setting:<17}{cells}{numbers['hit_rate']:>10.1%}{best:>7}")
            name = ""
    return lines
