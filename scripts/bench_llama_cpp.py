"""Steps beside llama.cpp's at the same number of bits: prefill of 512 tokens, decode of 1, 8 and 32 requests at 512.

    python scripts/bench_llama_cpp.py [FILE.gguf] [--pairs bfloat16,int8,int4,gguf] [--points ...] [--rounds 5]

Needs llama-cpp-python. Sides take turns within a round; numbers are medians over rounds. llama.cpp makes its BF16, Q8_0
and Q4_0 weights of the file itself and keeps KV in float16, a buffer for each request; of fused and plain attention,
the one that is faster at a point counts. `lmprog bench peers --llama-cpp FILE.gguf` compares whole workloads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

from bench_step import CONTEXT, make_batch
from kv_variants import fill

from lmprog_runtime.bench.llama_cpp_model import KINDS, LlamaContext, LlamaModel, Piece, library, requantized
from lmprog_runtime.errors import RuntimeFault
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.executor import load_executor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hub import resolve_model

POINTS = ("prefill512", "decode1", "decode8", "decode32")
LEAST_SECONDS = 0.5  # of steps at a point in a round


class Steps(Protocol):
    def prepare(self, point: str) -> None: ...

    def step(self, point: str) -> None:
        """Compute the point once."""


Times = dict[str, dict[str, list[float]]]  # by point and side, seconds per step, one per round


def main() -> int:
    arguments = parse()
    try:
        version = library().__version__
    except RuntimeFault as error:
        print(error, file=sys.stderr)
        return 1
    files = resolve_model(arguments.model)
    file = arguments.file or files.gguf
    if file is None or not file.is_file():
        print(f"There is no GGUF file of {arguments.model} here; give one.", file=sys.stderr)
        return 1
    print(f"{files.name}, {arguments.threads} threads, rounds: {arguments.rounds}; llama-cpp-python {version}\n")
    print("| step | weights | lmprog, tokens/s | llama.cpp, tokens/s | its attention | lmprog against llama.cpp |")
    print("|---|---|---|---|---|---|")
    for dtype in arguments.pairs:
        for line in compare(arguments, files, file, dtype):
            print(line, flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="GGUF; the model's own if it came from one")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=lambda text: text.split(","), default=["bfloat16", "int8", "int4", "gguf"])
    parser.add_argument("--points", type=lambda text: text.split(","), default=list(POINTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def compare(arguments: argparse.Namespace, files: ModelFiles, file: Path, dtype: str) -> Iterator[str]:
    """Lines of the table."""
    kind = KINDS.get(dtype)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        made = requantized(file, kind, Path(folder), arguments.threads) if kind else file
        model = stack.enter_context(closing(LlamaModel(made)))
        sides: dict[str, Steps] = {"lmprog": OurSteps(arguments, files, dtype)}
        for name, flash in (("fused", True), ("plain", False)):
            context = make_context(model, arguments, flash=flash)
            sides[name] = LlamaSteps(stack.enter_context(closing(context)))
        times = run_rounds(arguments, sides)
    for point, seconds in times.items():
        yield line(point, f"{dtype} / {kind or file.name}", {name: statistics.median(s) for name, s in seconds.items()})


def make_context(model: LlamaModel, arguments: argparse.Namespace, *, flash: bool) -> LlamaContext:
    most = max(map(requests, arguments.points))
    return LlamaContext(model, sequences=most, tokens=most * CONTEXT, threads=arguments.threads, unified=False,
                        flash=flash)  # fmt: skip


def requests(point: str) -> int:
    return int(point.removeprefix("decode")) if point.startswith("decode") else 1


class OurSteps:
    def __init__(self, arguments: argparse.Namespace, files: ModelFiles, dtype: str) -> None:
        slots, threads = 40 * CONTEXT, arguments.threads
        executor = load_executor(files, kind="cpu", dtype=dtype, num_slots=slots, threads=threads)
        assert isinstance(executor, CpuExecutor), "kind says it"
        fill(executor)
        self._executor = executor
        self._batches = {point: make_batch(point, executor.spec, scattered=False) for point in arguments.points}

    def prepare(self, point: str) -> None:
        """The batch names slots that are filled."""

    def step(self, point: str) -> None:
        self._executor.step(self._batches[point])


class LlamaSteps:
    """Prefill into an empty buffer; or one more token for each request, which the next step replaces."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context

    def prepare(self, point: str) -> None:
        """Batches are made before they are timed, as ours are."""
        if point.startswith("decode"):
            self._context.clear()
            self._context.decode([Piece(range(3, 3 + CONTEXT - 1), 0, [0])])
            self._context.share(0, range(1, requests(point)))  # copied, as each has a buffer of its own
            self._pieces = [Piece([3], CONTEXT - 1, [one], 1) for one in range(requests(point))]
        else:
            self._pieces = [Piece(range(3, 3 + int(point.removeprefix("prefill"))), 0, [0], 1)]
        self._batch = self._context.batch(self._pieces)

    def step(self, point: str) -> None:
        if point.startswith("decode"):
            self._context.cut(range(requests(point)), CONTEXT - 1)
        else:
            self._context.clear()
        self._context.compute(self._pieces, self._batch)


def run_rounds(arguments: argparse.Namespace, sides: dict[str, Steps]) -> Times:
    times: Times = {point: {name: [] for name in sides} for point in arguments.points}
    for number in range(arguments.rounds):
        names = [*sides][number % len(sides) :] + [*sides][: number % len(sides)]
        for point in arguments.points:
            for name in names:
                times[point][name].append(measure(sides[name], point))
    return times


def measure(side: Steps, point: str) -> float:
    """Median seconds of a step, after one that is not counted."""
    side.prepare(point)
    side.step(point)
    times: list[float] = []
    while len(times) < 3 or sum(times) < LEAST_SECONDS:
        start = time.perf_counter()
        side.step(point)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def line(point: str, weights: str, seconds: dict[str, float]) -> str:
    tokens = requests(point) if point.startswith("decode") else int(point.removeprefix("prefill"))
    attention = min(("fused", "plain"), key=lambda name: seconds[name])
    ours, theirs = seconds["lmprog"], seconds[attention]
    return f"| {point} | {weights} | {tokens / ours:.0f} | {tokens / theirs:.0f} | {attention} | {theirs / ours:.2f}x |"


if __name__ == "__main__":
    sys.exit(main())
