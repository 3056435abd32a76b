"""Where the time of an engine's decode steps goes: the native call, and the parts of Python around it."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from kv_variants import split_dtype

from lmprog_runtime import results
from lmprog_runtime.generation import Generation
from lmprog_runtime.request import GenerateRequest, SamplingParams, Sink
from lmprog_runtime.results import Results
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.scheduler import Scheduler

PARTS = ("schedule", "complete", "native call", "call around it", "mask", "sampling", "accept, detokenise", "append",
         "guess", "hand out", "rest")  # fmt: skip
Instrument = Callable[["Meter", Any], None]
_HANDED_OUT = ("mask", "sampling", "accept, detokenise", "append", "guess")  # the parts inside `Results.distribute`


class Meter:
    """Replaces functions by ones that note their time, and keeps one record for each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[str, float]]] = []  # rows of the step, seconds of each part
        self._now: dict[str, float] = defaultdict(float)
        self._undo: list[Callable[[], None]] = []

    def time(self, owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def timed(*arguments: Any, **more: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                self._now[part] += time.perf_counter() - start

        setattr(owner, name, timed)
        self._undo.append(lambda: setattr(owner, name, function))

    def whole_step(self, engine: Any) -> None:
        function, build = engine._step, engine.executor.step
        rows = 0

        def step(batch: Any) -> Any:
            nonlocal rows
            rows = len(batch.tokens)
            return build(batch)

        def timed() -> None:
            self._now.clear()
            start = time.perf_counter()
            function()
            self._now["step"] = time.perf_counter() - start
            self.steps.append((rows, dict(self._now)))

        engine._step, engine.executor.step = timed, step

    def undo(self) -> None:
        for undo in reversed(self._undo):
            undo()


def measure(model: str, dtype: str, batch: int, threads: int | None, instrument: Instrument) -> list[dict[str, float]]:
    """Seconds of what `instrument` times, and of the "step", in each decode step of `batch` requests on 512 tokens."""
    weights, int8_kv = split_dtype(dtype)
    kv_cache_dtype = "int8" if int8_kv else "auto"
    runtime = LocalRuntime.start(model=model, dtype=weights, threads=threads, kv_cache_dtype=kv_cache_dtype)
    meter = Meter()
    try:
        runtime.engine.call(lambda: instrument(meter, runtime.engine)).result()
        _generate(runtime, batch)
    finally:
        runtime.close()
        meter.undo()
    return [seconds for rows, seconds in meter.steps if rows == batch]


def time_native_call(meter: Meter, engine: Any) -> None:
    """Timing all parts takes 3 us for each request of a step; the share outside the call is measured without."""
    meter.time(engine.executor.decoder._library.functions, "lmk_decoder_step", "native call")
    meter.whole_step(engine)


def time_parts(meter: Meter, engine: Any) -> None:
    time_native_call(meter, engine)
    meter.time(engine.executor, "step", "executor")
    meter.time(Scheduler, "schedule", "schedule")
    meter.time(Scheduler, "complete", "complete")
    meter.time(Scheduler, "append", "append")
    meter.time(results, "sample", "sampling")
    meter.time(Generation, "mask", "mask")
    meter.time(Generation, "accept", "accept, detokenise")
    meter.time(Generation, "draft", "guess")
    meter.time(Results, "distribute", "distribute")


def _text() -> str:
    """The documentation: after random tokens a model is sure of nothing, and a draw from all tokens costs more."""
    return "\n".join(path.read_text() for path in sorted((Path(__file__).parents[1] / "docs").glob("*.md")))


def _generate(runtime: LocalRuntime, batch: int) -> None:
    ids = runtime.tokenizer.encode(_text())
    starts = np.linspace(0, len(ids) - 512, batch, dtype=int).tolist()
    prompts = [ids[start : start + 512] for start in starts]
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    sink = Sink(lambda _: None, lambda _: ended.put(None), ended.put)
    params = SamplingParams(max_tokens=80, temperature=0.8, top_p=0.95, ignore_eos=True, seed=1)
    runtime.engine.submit_group([GenerateRequest(ids, params) for ids in prompts], [sink] * batch)
    for error in [ended.get() for _ in prompts]:
        if error is not None:
            raise error


def _parts(seconds: dict[str, float]) -> dict[str, float]:
    found = dict.fromkeys(("step", *PARTS), 0.0) | seconds
    found["call around it"] = seconds["executor"] - seconds["native call"]
    found["hand out"] = seconds["distribute"] - sum(found[part] for part in _HANDED_OUT)
    found["rest"] = found["step"] - sum(found[part] for part in PARTS if part != "rest")
    return found


def table(model: str, dtype: str, batches: tuple[int, ...] = (1, 16), threads: int | None = None) -> list[str]:
    """Lines of a markdown table, microseconds."""
    lines = ["| decode step, us | " + " | ".join(("step", *PARTS, "outside the call")) + " |"]
    lines.append("|---" * (len(PARTS) + 3) + "|")
    for batch in batches:
        steps = [_parts(seconds) for seconds in measure(model, dtype, batch, threads, time_parts)]
        cells = [f"{statistics.median(step[part] for step in steps) * 1e6:.0f}" for part in ("step", *PARTS)]
        whole = measure(model, dtype, batch, threads, time_native_call)
        outside = statistics.median(1 - seconds["native call"] / seconds["step"] for seconds in whole)
        lines.append(f"| batch {batch} | " + " | ".join(cells) + f" | {outside:.1%} |")
    return lines
