"""What the language itself costs: `python scripts/bench_language.py`. The model costs nothing here."""

import threading
import time
from collections.abc import Callable

from lmprog import Program, ScriptedBackend, State, function, gen

GENS, ROUNDS, PROGRAMS = 500, 10, 1000


@function
def straight(s: State) -> None:
    for _ in range(GENS):
        s += gen("x", max_tokens=4, temperature=0)


@function
def tree(s: State) -> None:
    """27 leaves on three levels."""
    for a in s.fork(3):
        for b in a.fork(3):
            leaves = b.fork(3)
            leaves += gen("x", max_tokens=4, temperature=0)
            leaves.join()


def best_seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(ROUNDS))


def run_of(program: Program[[], None]) -> Callable[[], object]:
    backend = ScriptedBackend("")
    return lambda: program.run(backend=backend).sync()


def many_programs() -> tuple[float, int]:
    """(seconds, most threads at a time) of 1,000 programs of 27 leaves."""
    backend, most = ScriptedBackend("", delay=0.001), 0
    start = time.perf_counter()
    for _ in tree.run_batch([{}] * PROGRAMS, backend=backend, num_threads=8, generator_style=True):
        most = max(most, threading.active_count())
    return time.perf_counter() - start, most


def main() -> None:
    print(f"one gen:                      {best_seconds(run_of(straight)) / GENS * 1e6:8.1f} microseconds")
    print(f"one of 27 leaves, with fork:  {best_seconds(run_of(tree)) / 27 * 1e6:8.1f} microseconds")
    seconds, threads = many_programs()
    print(f"1,000 programs of 27 leaves:  {seconds:8.2f} s, {PROGRAMS * 27 / seconds:.0f} gens/s, {threads} threads")


if __name__ == "__main__":
    main()
