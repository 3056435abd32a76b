"""Hit rates of eviction and scheduling policies on five kinds of work, against the optimum. No model needed.

python scripts/cache_table.py            # prints the tables
python scripts/cache_table.py --write    # puts them into docs/cache.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

from lmprog_runtime.cache import CacheConfig
from lmprog_runtime.cache.eviction import POLICIES as EVICTION_POLICIES
from lmprog_runtime.scheduler import SchedulerConfig
from lmprog_runtime.scheduler.simulator import Simulation, TraceRequest, optimum, simulate
from lmprog_runtime.scheduler.waiting import POLICIES as SCHEDULING_POLICIES

DOCUMENT = Path(__file__).parents[1] / "docs" / "cache.md"
BEGIN, END = "<!-- tables: scripts/cache_table.py -->", "<!-- end of tables -->"
POOLS = (4096, 8192, 16384, 65536)
MAX_RUNNING = 8

Trace = list[TraceRequest]
Tokens = tuple[int, ...]


class Writer:
    """Makes token ids that never repeat by chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._ids = count(1)

    def text(self, length: int) -> Tokens:
        return tuple(next(self._ids) for _ in range(length))

    def about(self, length: int) -> Tokens:
        return self.text(self.random.randrange(length // 2, 2 * length))


def few_shot(seed: int = 0) -> Trace:
    """12 tasks with 500 to 900 tokens of examples; 400 questions, some tasks ten times as frequent as others."""
    writer = Writer(seed)
    heads = [writer.text(writer.random.randrange(500, 900)) for _ in range(12)]
    weights = [10, 8, 6, 4, 3, 2, 1, 1, 1, 1, 1, 1]
    asked = writer.random.choices(heads, weights, k=400)
    return [
        TraceRequest(prompt=head + writer.about(40), output=writer.about(12), at=n * 80) for n, head in enumerate(asked)
    ]


def chat(seed: int = 1) -> Trace:
    """40 conversations of 6 turns behind one system prompt, their turns mixed in time."""
    writer = Writer(seed)
    system = writer.text(250)
    histories = [system] * 40
    trace = []
    turns = [session for session in range(40) for _ in range(6)]
    writer.random.shuffle(turns)
    for number, session in enumerate(turns):
        prompt = histories[session] + writer.about(50)
        output = writer.about(60)
        histories[session] = prompt + output
        trace.append(TraceRequest(prompt=prompt, output=output, at=number * 150))
    return trace


def tree_of_thought(seed: int = 2) -> Trace:
    """16 problems; 3 levels of 3 thoughts each, every thought continued from its parent; levels come as groups."""
    writer = Writer(seed)
    trace: Trace = []
    starts = [writer.random.randrange(0, 20_000) for _ in range(16)]
    for problem, start in enumerate(sorted(starts)):
        level = [writer.text(300)]
        for depth in range(3):
            grown = [(parent, writer.about(50)) for parent in level for _ in range(3)]
            at, group = start + depth * 1500, f"{problem}-{depth}"
            trace += [TraceRequest(prompt=parent, output=thought, at=at, group=group) for parent, thought in grown]
            level = [parent + thought for parent, thought in grown]
    return sorted(trace, key=lambda request: request.at)


def fork(seed: int = 3) -> Trace:
    """40 programs, several at a time: a document of 800 tokens, 8 branches with an instruction each, and long after
    that a question over all of it."""
    writer = Writer(seed)
    trace: Trace = []
    for program in range(40):
        document, at = writer.about(800), program * 1300
        for _ in range(8):
            prompt = document + writer.about(30)
            trace.append(TraceRequest(prompt=prompt, output=writer.about(40), at=at, group=str(program), dead=True))
        trace.append(TraceRequest(prompt=document + writer.about(200), output=writer.about(20), at=at + 6000))
    return sorted(trace, key=lambda request: request.at)


def scan(seed: int = 4) -> Trace:
    """Two hot heads among 300 prompts of which each comes once: what a cache should not be flooded by."""
    writer = Writer(seed)
    hot = [writer.text(700), writer.text(700)]
    trace = []
    for number in range(400):
        head = writer.random.choice(hot) if number % 4 == 0 else writer.text(400)
        trace.append(TraceRequest(prompt=head + writer.about(30), output=writer.about(10), at=number * 400))
    return trace


WORKLOADS: dict[str, Callable[[], Trace]] = {
    "few-shot": few_shot,
    "chat": chat,
    "tree of thought": tree_of_thought,
    "fork": fork,
    "random with hot heads": scan,
}


def run(trace: Trace, pool: int, eviction: str, scheduling: str = "fcfs") -> Simulation:
    scheduler = SchedulerConfig(context_length=8192, max_running=MAX_RUNNING, policy=scheduling)
    return simulate(trace, CacheConfig(num_slots=pool, policy=eviction), scheduler)


def eviction_table(name: str, trace: Trace) -> Iterable[str]:
    cached, computed = optimum(trace)
    prompts = sum(len(request.prompt) for request in trace)
    best = f"optimum {cached / prompts:.1%} / {computed:,}"
    yield f"**{name}**: {len(trace)} requests, {prompts:,} prompt tokens, {best}"
    yield ""
    yield "| policy | " + " | ".join(f"{pool:,} slots" for pool in POOLS) + " |"
    yield "|---|" + "---|" * len(POOLS)
    for policy in EVICTION_POLICIES:
        cells = [_cell(run([replace(request, dead=False) for request in trace], pool, policy)) for pool in POOLS]
        yield f"| {policy} | " + " | ".join(cells) + " |"
    if any(request.dead for request in trace):
        cells = [_cell(run(trace, pool, "lru")) for pool in POOLS]
        yield "| lru, and programs say when a branch has ended | " + " | ".join(cells) + " |"
    yield ""


def scheduling_table(traces: dict[str, Trace], pool: int) -> Iterable[str]:
    yield f"Order of admission, all requests waiting from the start, lru, {pool:,} slots:"
    yield ""
    yield "| work | " + " | ".join(SCHEDULING_POLICIES) + " | optimum |"
    yield "|---|" + "---|" * (len(SCHEDULING_POLICIES) + 1)
    for name, trace in traces.items():
        at_once = [_at_start(request) for request in trace]
        results = [run(at_once, pool, "lru", policy) for policy in SCHEDULING_POLICIES]
        best = results[0]
        cells = [_cell(result) for result in results] + [f"{best.best_hit_rate:.1%} / {best.best_computed_tokens:,}"]
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""


def _at_start(request: TraceRequest) -> TraceRequest:
    return TraceRequest(prompt=request.prompt, output=request.output)


def _cell(result: Simulation) -> str:
    return f"{result.hit_rate:.1%} / {result.computed_tokens:,}"


def tables() -> str:
    traces = {name: make() for name, make in WORKLOADS.items()}
    lines = ["Each cell: share of prompt tokens that were not computed / tokens computed in all.", ""]
    for name, trace in traces.items():
        lines += eviction_table(name, trace)
    independent = {name: traces[name] for name in ("few-shot", "fork", "random with hot heads")}
    lines += scheduling_table(independent, POOLS[0])
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update docs/cache.md")
    options = parser.parse_args()
    made = tables()
    if not options.write:
        print(made)
        return
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
