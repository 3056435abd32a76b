"""`lmprog bench peers`: sharing workloads against transformers and running servers, in one interleaved run.

Every round has fresh prompts, so that no side finds them in a cache; sides take turns within a round; numbers are
medians over rounds. All sides have the same weights, dtype, number of threads, prompts and lengths of answers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from lmprog_runtime.bench.environment import environment
from lmprog_runtime.bench.results import describe
from lmprog_runtime.bench.runtime_flags import add_runtime_flags, runtime_config
from lmprog_runtime.bench.serving import append_lines
from lmprog_runtime.bench.sides import Endpoint, Ours, Side
from lmprog_runtime.bench.workloads import Workload, make_workloads
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.runtime import LocalRuntime

Seconds = dict[str, dict[str, list[float]]]  # by workload and side


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="lmprog bench peers", description="Sharing workloads against others.")
    made.add_argument("--scale", type=float, default=1.0, help="multiplies shared lengths and numbers of requests")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--workloads", nargs="+", help="only these, by name")
    made.add_argument(
        "--transformers", action=argparse.BooleanOptionalAction, default=True, help="with and without reuse"
    )
    made.add_argument("--transformers-batch", type=int, default=8, help="its batch size")
    made.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="a server with OpenAI's API")
    made.add_argument("--peer-model", default="default", help="what requests to servers call the model")
    made.add_argument("--output-file", type=Path, help="JSON Lines; the result is appended")
    add_runtime_flags(made)
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    runtime = LocalRuntime.from_config(runtime_config(options))
    try:
        result = measure(options, runtime)
    finally:
        runtime.close()
    print("\n".join([*table(result), describe(result)]))
    if options.output_file:
        append_lines(options.output_file, [result])
    return 0


def measure(options: argparse.Namespace, runtime: LocalRuntime) -> dict[str, Any]:
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    sides = [Ours(runtime), *_peers(options, runtime)]
    seconds: Seconds = {}
    output_tokens: dict[str, list[int]] = {}
    _warm_up(sides, _workloads(options, runtime, seed=options.seed - 1, scale=min(options.scale, 0.02)))
    for number in range(options.rounds):
        works = _workloads(options, runtime, seed=options.seed + number, scale=options.scale)
        for work in tqdm(works, desc=f"round {number + 1}", unit="workload", disable=None):
            measured = _with_lengths(work, sides[0])
            _round(sides, measured, number, seconds.setdefault(work.name, {}))
            output_tokens.setdefault(work.name, []).append(sum(measured.answer_lens))
    context = {"scale": options.scale, "rounds": options.rounds, "transformers_batch": options.transformers_batch}
    return {
        "kind": "peers",
        **context,
        "model": runtime.info(),
        "threads": options.threads or os.cpu_count(),
        "environment": environment(),
        "seconds": seconds,
        "output_tokens": output_tokens,
    }


def _peers(options: argparse.Namespace, runtime: LocalRuntime) -> list[Side]:
    found: list[Side] = []
    if options.transformers:
        from lmprog_runtime.bench.hf_side import hf_sides

        dtype = getattr(torch, runtime.info()["dtype"], torch.bfloat16)  # it has no int8 or int4 of its own
        found += hf_sides(runtime.files.directory, dtype, options.transformers_batch)
    for text in options.peer:
        name, sign, url = text.partition("=")
        if not sign:
            raise RequestRefused(f"--peer {text!r} is not NAME=URL.")
        found.append(Endpoint(name, url, options.peer_model, runtime.tokenizer, os.environ.get("LMPROG_PEER_KEY")))
    return found


def _workloads(options: argparse.Namespace, runtime: LocalRuntime, *, seed: int, scale: float) -> list[Workload]:
    made = make_workloads(runtime.tokenizer, seed, scale)
    names = [work.name for work in made]
    for name in options.workloads or ():
        if name not in names:
            raise RequestRefused(f"There is no workload {name!r}; there are {', '.join(names)}.")
    return [work for work in made if not options.workloads or work.name in options.workloads]


def _warm_up(sides: Sequence[Side], workloads: list[Workload]) -> None:
    """Make what is made lazily: every kind of work once, with short answers."""
    for side in sides:
        for work in workloads:
            side.run(_with_lengths(work._replace(new_tokens=min(work.new_tokens, 8)), sides[0]))


def _with_lengths(work: Workload, ours: Side) -> Workload:
    """Greedy decoding gives the same lengths in the timed run as in this one."""
    done = ours.run(work)
    assert done is not None, "this runtime can do all workloads"
    return work._replace(answer_lens=tuple(done.output_lens))


def _round(sides: Sequence[Side], work: Workload, number: int, seconds: dict[str, list[float]]) -> None:
    """Time every side once, each time with another one first."""
    start = number % len(sides)
    for side in [*sides[start:], *sides[:start]]:
        began = time.perf_counter()
        done = side.run(work)
        if done is not None:
            seconds.setdefault(side.name, []).append(time.perf_counter() - began)


def table(result: dict[str, Any]) -> list[str]:
    """Seconds per workload and side, and how many times as long as here the others take."""
    names = list(dict.fromkeys(name for sides in result["seconds"].values() for name in sides))
    names.sort(key=lambda name: name != Ours.name)
    lines = [f"{'workload':<17}" + "".join(f"{name[:34]:>36}" for name in names)]
    for work, sides in result["seconds"].items():
        ours = statistics.median(sides[Ours.name])
        lines.append(f"{work:<17}" + "".join(f"{_cell(sides.get(name), ours):>36}" for name in names))
    return lines


def _cell(seconds: list[float] | None, ours: float) -> str:
    if not seconds:
        return "-"
    median = statistics.median(seconds)
    return f"{median:.2f} s  {median / ours:5.1f}x"
