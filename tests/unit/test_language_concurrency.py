"""Many programs at once: bounded threads, no mixing, and a small cost per step."""

from __future__ import annotations

import random
import re
import threading
import time
from typing import Any

import pytest

from lmprog import Cancelled, ScriptedBackend, function, gen
from tests.support.language import counting, no_threads_left

pytestmark = pytest.mark.timeout(100)


@function
def tree(s, name):
    """27 leaves on three levels."""
    s += name
    for a in s.fork(3):
        a += " a"
        for b in a.fork(3):
            b += " b"
            leaves = b.fork(3)
            leaves += lambda i: f" leaf {i}:" + gen("v")
            leaves.join()


@pytest.mark.slow
def test_a_thousand_programs_of_27_leaves_on_bounded_threads() -> None:
    backend = ScriptedBackend(lambda call: f" <{call.prompt}>", delay=0.01)
    most = 0

    def watch(_: Any) -> float:
        nonlocal most
        most = max(most, threading.active_count())
        return 0.01

    backend._delay = watch
    before = threading.active_count()
    with no_threads_left():
        runs = tree.run_batch([(f"p{i}",) for i in range(1000)], backend=backend, num_threads=16)
    assert most <= before + 16 + 1
    assert len(backend.calls) == 27_000
    assert backend.open_streams == 0
    for i, run in enumerate(runs):
        assert run.error() is None
        leaves = [r.text for r in run.record.walk() if r.kind == "gen"]
        assert leaves == [f" <p{i} a b leaf {k}:>" for _ in range(9) for k in range(3)]


def test_branches_run_side_by_side_without_threads() -> None:
    backend = counting(delay=0.05)

    @function
    def wide(s):
        group = s.fork(200)
        group += gen("v")
        threads = threading.active_count()
        group.join()
        assert len(s["v"]) == 200
        return threads

    before = threading.active_count()
    start = time.monotonic()
    assert wide.run(backend=backend).ret_value <= before + 1
    assert backend.peak_running == 200
    assert time.monotonic() - start < 8  # one after the other: 10


def test_constrained_and_free_calls_do_not_cross() -> None:
    """500 calls from 16 threads, half with a regex of their own, some aborted: each gets what is its own."""
    backend = ScriptedBackend(
        lambda call: call.prompt[1:] * 2 if call.constraint else call.prompt[::-1],
        delay=lambda call: random.Random(call.number).uniform(0, 0.01),
    )

    @function
    def program(s, i):
        s += f"#{i}"
        s += gen("x", regex=f"({i}){{2}}") if i % 2 else gen("x")
        if i % 7 == 0:
            s.cancel()

    with no_threads_left():
        runs = program.run_batch([(i,) for i in range(500)], backend=backend, num_threads=16)
    for i, run in enumerate(runs):
        if run.error() is not None:
            assert i % 7 == 0
            assert isinstance(run.error(), Cancelled)
        elif i % 2:
            assert re.fullmatch(f"({i}){{2}}", run["x"])
        else:
            assert run["x"] == f"#{i}"[::-1]
    assert backend.open_streams == backend.running == 0


def test_long_programs_do_not_recurse() -> None:
    @function
    def long(s):
        for _ in range(2000):
            s += gen("x")
        branch = s
        for _ in range(2000):
            branch = branch.fork(1)[0]
            branch += gen("y")
        return branch["y"]

    backend = ScriptedBackend("", delay=lambda call: 0.05 if call.number == 1 else 0)
    assert long.run(backend=backend).ret_value == ""


def test_readers_on_many_threads_all_get_the_value() -> None:
    seen: list[str] = []

    @function
    def program(s):
        s += gen("x")
        readers = [threading.Thread(target=lambda: seen.append(s["x"])) for _ in range(20)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    program.run(backend=counting(delay=0.01))
    assert seen == [" n1"] * 20


def test_cost_of_a_gen() -> None:
    """A generous bound against a slow machine; the benchmark in the docs has the exact number."""

    @function
    def program(s):
        for _ in range(500):
            s += gen("x", max_tokens=4, temperature=0)

    backend = ScriptedBackend("")
    seconds: list[float] = []
    for _ in range(6):
        start = time.process_time()  # of all threads, those of other tests too: the least is ours
        program.run(backend=backend)
        seconds.append(time.process_time() - start)
    assert min(seconds) / 500 < 500e-6
