"""Guesses verified in the same step: steps and time with and without, on text that repeats itself and text that is new.

    python scripts/bench_speculation.py [--dtype bfloat16] [--rounds 3]

Runs alternate; medians. Both must give the same tokens in float32 (other types may round differently in larger steps).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from queue import SimpleQueue
from typing import Any, NamedTuple

from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams, Sink
from lmprog_runtime.runtime import LocalRuntime

LIST = "Planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune.\n"
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["planet", "moon", "star"]},
            "has_rings": {"type": "boolean"},
            "number_of_moons": {"type": "integer", "minimum": 0, "maximum": 200},
        },
        "required": ["name", "kind", "has_rings", "number_of_moons"],
    }
)


class Work(NamedTuple):
    name: str
    prompt: str
    params: dict[str, Any]
    constraint: Constraint | None = None


WORK = (
    Work("copying a list", LIST * 3 + "Planets:", {"temperature": 0.0, "max_tokens": 64}),
    Work("a story, sampled", "Once upon a time", {"temperature": 1.0, "seed": 1, "max_tokens": 64}),
    Work("JSON", "Saturn as JSON: ", {"temperature": 0.0, "max_tokens": 64}, Constraint("json_schema", SCHEMA)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8])
    parser.add_argument("--work", choices=[work.name for work in WORK], help="only this one")
    arguments = parser.parse_args()
    runtimes = [
        LocalRuntime.start(dtype=arguments.dtype, speculation=speculation, max_total_tokens=8192)
        for speculation in (False, True)
    ]
    for work in [work for work in WORK if arguments.work in (None, work.name)]:
        for batch in arguments.batches:
            print(compare(runtimes, work, batch, arguments.rounds))
    for runtime in runtimes:
        runtime.close()


def compare(runtimes: list[LocalRuntime], work: Work, batch: int, rounds: int) -> str:
    times: list[list[float]] = [[], []]
    steps, outputs = [0, 0], [list[tuple[int, ...]](), list[tuple[int, ...]]()]
    drafts = (0, 0)
    for _ in range(rounds + 1):  # the first one fills the caches
        for index, runtime in enumerate(runtimes):
            before, started = runtime.engine.steps, time.perf_counter()
            done = generate(runtime, work, batch)
            times[index].append(time.perf_counter() - started)
            steps[index] = runtime.engine.steps - before
            outputs[index] = [completion.token_ids for completion in done]
            drafts = done[0].drafts
    off, on = (statistics.median(each[1:]) for each in times)
    same = "the same" if outputs[0] == outputs[1] else "other"
    return (
        f"{work.name} x {batch}: {off * 1e3:.0f} ms without, {on * 1e3:.0f} with, ratio {off / on:.2f}; steps "
        f"{steps[0]} and {steps[1]}; {drafts[1]} of {drafts[0]} guesses of one request came true; {same} tokens"
    )


def generate(runtime: LocalRuntime, work: Work, batch: int) -> list[Completion]:
    ended: SimpleQueue[Any] = SimpleQueue()
    sink = Sink(lambda _: None, ended.put, ended.put)
    ids = runtime.tokenizer.encode(work.prompt)
    request = GenerateRequest(ids, SamplingParams(**work.params), constraint=work.constraint)
    runtime.engine.submit_group([request] * batch, [sink] * batch)
    return [ended.get() for _ in range(batch)]


if __name__ == "__main__":
    main()
