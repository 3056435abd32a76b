"""What programs tell the cache by running: whose tokens are needed again, whose never, and what a loser gives back."""

from __future__ import annotations

from typing import Any

from lmprog import Runtime, State, function, gen
from lmprog.errors import Cancelled
from lmprog_runtime.request import GenerateRequest
from lmprog_runtime.runtime import LocalRuntime
from tests.support.tiny_engine import ASCII_ONLY, greedy, prompt, run
from tests.support.tiny_server import eventually

PREFIX = "a prefix that all branches share: "


@function
def branches_end(s: State) -> None:
    s += PREFIX + gen("head", max_tokens=1)
    with s.fork(2) as branches:
        for number, branch in enumerate(branches):
            branch += f"{number}" + gen("x", max_tokens=5, temperature=0, ignore_eos=True)


def test_tokens_of_ended_branches_are_marked_and_the_prefix_is_not(runtime: LocalRuntime) -> None:
    branches_end.run(backend=Runtime.over(runtime)).sync()
    eventually(lambda: any(node["dead"] for node in _nodes(runtime)))
    dead = {(node["start"] >= len(PREFIX), node["dead"]) for node in _nodes(runtime)}
    assert dead == {(False, False), (True, True)}


def _nodes(runtime: LocalRuntime) -> list[dict[str, Any]]:
    (space,) = runtime.cache.dump()["namespaces"]
    nodes: list[dict[str, Any]] = space["nodes"]
    return nodes


def test_a_parent_that_waits_for_its_branches_is_evicted_last_and_locks_nothing(runtime: LocalRuntime) -> None:
    engine, cache = runtime.engine, runtime.engine.cache
    stream = Runtime.over(runtime).open_stream()
    run(engine, GenerateRequest(prompt(PREFIX), greedy(1), lease=stream._lease))
    for branch in stream.fork(2):
        branch.close()
    run(engine, GenerateRequest(prompt("something else, and younger, that nobody waits for"), greedy(1)))
    assert runtime.on_engine(lambda: cache.tree.leased) == 0
    runtime.on_engine(lambda: cache.evict(40))
    assert runtime.cache.explain(PREFIX).matched >= len(PREFIX) - 1
    stream.close()


def _held_by_rows(runtime: LocalRuntime) -> int:
    """What was cancelled before this question was asked is over when it is answered."""
    return runtime.on_engine(lambda: runtime.engine.cache.held)


def _comes_to_rest(runtime: LocalRuntime) -> None:
    """Nothing is held, protected or leased, as soon as the streams of the run are closed."""
    cache = runtime.engine.cache
    eventually(lambda: runtime.on_engine(lambda: (cache.held, cache.tree.protected, cache.tree.leased)) == (0, 0, 0))


ENDLESS: dict[str, Any] = {"max_tokens": 150, "temperature": 1.0, "logit_bias": ASCII_ONLY}


def test_losers_of_a_race_give_their_kv_back_at_once(runtime: LocalRuntime) -> None:
    """The losers would go on for long; once the winner is returned, the engine has heard that they end."""
    seen = []

    @function
    def race(s: State) -> str:
        s += PREFIX
        branches = s.fork(4)
        for number, branch in enumerate(branches):
            branch += f"{number}" + gen("x", **{**ENDLESS, "max_tokens": 2 if number == 2 else 150})
        (winner,) = branches.first()
        seen.append(_held_by_rows(runtime))
        return str(winner["x"])

    state = race.run(backend=Runtime.over(runtime))
    assert len(state.ret_value) == 2
    assert seen == [0]
    _comes_to_rest(runtime)
    assert runtime.statistics()["generated_tokens"] < 3 * 150


def test_a_cancelled_run_gives_its_kv_back_at_once(runtime: LocalRuntime) -> None:
    started: list[State] = []

    @function
    def endless(s: State) -> None:
        s += PREFIX
        started.extend(s.fork(3))
        for branch in started:
            branch += gen("x", **ENDLESS)

    state = endless.run(backend=Runtime.over(runtime), stream=True)
    eventually(lambda: len(runtime.engine.scheduler.running) == 3)
    state.cancel()
    assert _held_by_rows(runtime) == 0
    assert all(isinstance(branch.error(), Cancelled) for branch in started)
    _comes_to_rest(runtime)
