"""`lmprog bench peers`: sharing workloads against transformers, llama.cpp and running servers, in one interleaved run.

Every round has fresh prompts, so that no side finds them in a cache; sides take turns within a round; numbers are
medians over rounds. All sides have the same prompts and lengths of answers; transformers also the same weights and
threads, and the same dtype where it has it; llama.cpp the same threads, and weights of as many bits.
On 2 cores, full size with 3 rounds takes about three quarters of an hour, `--scale 0.25 --rounds 2` about five minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from lmprog_runtime.bench.environment import environment
from lmprog_runtime.bench.results import PeerTime, describe, peer_names, peer_times
from lmprog_runtime.bench.runtime_flags import add_runtime_flags, runtime_config
from lmprog_runtime.bench.serving import append_lines
from lmprog_runtime.bench.sides import Endpoint, Ours, Side
from lmprog_runtime.bench.workloads import Workload, make_workloads
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.runtime import LocalRuntime

Seconds = dict[str, dict[str, list[float]]]  # by workload and side


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="lmprog bench peers", description=__doc__)
    made.add_argument("--scale", type=float, default=1.0, help="multiplies shared lengths and numbers of requests")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--seed", type=int, default=7)
    made.add_argument("--workloads", nargs="+", help="only these, by name")
    made.add_argument(
        "--transformers", action=argparse.BooleanOptionalAction, default=True, help="with and without reuse"
    )
    made.add_argument(
        "--without-guesses", action=argparse.BooleanOptionalAction, default=True, help="also without speculation"
    )
    made.add_argument("--transformers-batch", type=int, default=16, help="its batch size")
    made.add_argument("--peer", action="append", default=[], metavar="NAME=URL", help="a server with OpenAI's API")
    made.add_argument(
        "--llama-cpp", type=Path, metavar="FILE.gguf", help="llama.cpp in this process, weights of as many bits as here"
    )
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
    with contextlib.ExitStack() as stack:
        sides = [Ours(runtime), *_without_guesses(options, runtime, stack), *_peers(options, runtime, stack)]
        measured = _rounds(options, runtime, sides)
    context = {"scale": options.scale, "rounds": options.rounds, "transformers_batch": options.transformers_batch}
    return {
        "kind": "peers",
        **context,
        "model": runtime.info(),
        "threads": options.threads or os.cpu_count(),
        "environment": environment(),
        **measured._asdict(),
    }


class Measured(NamedTuple):
    seconds: Seconds
    output_tokens: dict[str, list[int]]  # by workload, one per round, as are accepted_guesses
    accepted_guesses: dict[str, list[int]]  # how many of the output tokens of `lmprog` were guesses that came true


def _rounds(options: argparse.Namespace, runtime: LocalRuntime, sides: list[Side]) -> Measured:
    found = Measured({}, {}, {})
    warm = _workloads(options, runtime, seed=options.seed - 1, scale=min(options.scale, 0.02))
    works = [
        _workloads(options, runtime, seed=options.seed + number, scale=options.scale)
        for number in range(options.rounds)
    ]
    with tqdm(total=len(sides) * (len(warm) + sum(map(len, works))), unit="run", disable=None) as bar:
        _warm_up(sides, warm, bar)
        for number, works_of_round in enumerate(works):
            for work in works_of_round:
                before = runtime.statistics()["accepted_tokens"]
                measured = _with_lengths(work, sides[0])
                guessed = runtime.statistics()["accepted_tokens"] - before
                found.accepted_guesses.setdefault(work.name, []).append(guessed)
                found.output_tokens.setdefault(work.name, []).append(sum(measured.answer_lens))
                times = _round(sides, measured, number, bar)
                _keep(found.seconds.setdefault(work.name, {}), times)
                bar.write(f"round {number + 1}, {work.name}: {_in_words(times)}", file=sys.stderr)
    return found


def _keep(seconds: dict[str, list[float]], times: dict[str, float]) -> None:
    for name, value in times.items():
        seconds.setdefault(name, []).append(value)


def _in_words(times: dict[str, float]) -> str:
    return "; ".join(f"{name} {value:.2f} s" for name, value in times.items())


def _without_guesses(options: argparse.Namespace, runtime: LocalRuntime, stack: contextlib.ExitStack) -> list[Side]:
    """The same executor, so that only one of the two may be used at a time, each from an empty cache."""
    if not options.without_guesses or not runtime.config.speculation:
        return []
    config = dataclasses.replace(runtime.config, speculation=False)
    other = LocalRuntime(runtime.files, runtime.executor, runtime.tokenizer, config)
    stack.callback(other.close)
    return [Ours(other, "lmprog without guesses")]


def _peers(options: argparse.Namespace, runtime: LocalRuntime, stack: contextlib.ExitStack) -> list[Side]:
    found: list[Side] = [_endpoint(text, options, runtime) for text in options.peer]
    if options.transformers:
        from lmprog_runtime.bench.hf_side import hf_sides

        found = [*hf_sides(runtime.files, _float_dtype(runtime.info()["dtype"]), options.transformers_batch), *found]
    if options.llama_cpp:
        from lmprog_runtime.bench.llama_cpp_side import llama_cpp_side

        threads = options.threads or os.cpu_count() or 1
        side = llama_cpp_side(options.llama_cpp, runtime.info()["dtype"], runtime.executor.vocab_size, threads)
        found.append(stack.enter_context(side))
    return found


def _float_dtype(name: str) -> torch.dtype:
    """bfloat16 for what transformers cannot compute in."""
    dtype = getattr(torch, name, torch.bfloat16)
    return dtype if dtype.is_floating_point else torch.bfloat16


def _endpoint(text: str, options: argparse.Namespace, runtime: LocalRuntime) -> Endpoint:
    name, sign, url = text.partition("=")
    if not sign:
        raise RequestRefused(f"--peer {text!r} is not NAME=URL.")
    found = Endpoint(name, url, options.peer_model, runtime.tokenizer, os.environ.get("LMPROG_PEER_KEY"))
    found.choose_prompts()
    return found


def _workloads(options: argparse.Namespace, runtime: LocalRuntime, *, seed: int, scale: float) -> list[Workload]:
    made = make_workloads(runtime.tokenizer, seed, scale)
    names = [work.name for work in made]
    for name in options.workloads or ():
        if name not in names:
            raise RequestRefused(f"There is no workload {name!r}; there are {', '.join(names)}.")
    return [work for work in made if not options.workloads or work.name in options.workloads]


def _warm_up(sides: Sequence[Side], workloads: list[Workload], bar: Any) -> None:
    """Make what is made lazily: every kind of work once, with short answers."""
    for side in sides:
        for work in workloads:
            bar.set_description(f"warm-up, {side.name}")
            side.run(_with_lengths(work._replace(new_tokens=min(work.new_tokens, 8)), sides[0]))
            bar.update()


def _with_lengths(work: Workload, ours: Side) -> Workload:
    """Greedy decoding gives the same lengths in the timed run as in this one."""
    done = ours.run(work)
    assert done is not None, "this runtime can do all workloads"
    return work._replace(answer_lens=tuple(done.output_lens))


def _round(sides: Sequence[Side], work: Workload, number: int, bar: Any) -> dict[str, float]:
    """Seconds of every side that can do the work, each round with another one first."""
    times: dict[str, float] = {}
    start = number % len(sides)
    for side in [*sides[start:], *sides[:start]]:
        bar.set_description(f"round {number + 1}, {work.name}, {side.name}")
        began = time.perf_counter()
        done = side.run(work)
        if done is not None:
            times[side.name] = time.perf_counter() - began
        bar.update()
    return {side.name: times[side.name] for side in sides if side.name in times}


def table(result: dict[str, Any]) -> list[str]:
    """Seconds per workload and side, and how many times as long as here the others take."""
    names = peer_names(result)
    widths = {name: max(len(name), 16) + 2 for name in names}
    lines = [f"{'workload':<17}" + "".join(f"{name:>{widths[name]}}" for name in names)]
    for work, sides in result["seconds"].items():
        times = peer_times(sides)
        lines.append(f"{work:<17}" + "".join(f"{_cell(times.get(name)):>{widths[name]}}" for name in names))
    return lines


def _cell(time: PeerTime | None) -> str:
    return "-" if time is None else f"{time.seconds:.2f} s  {time.ratio:5.1f}x"
