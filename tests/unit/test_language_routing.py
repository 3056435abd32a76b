"""`cache`, `cache_salt` and `priority`: options of a run that every call of it carries."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog import ScriptedBackend, State, function, gen, select
from lmprog.backends.base import Routing
from lmprog.errors import InvalidArgument, UnsupportedParameter

ROUTED: dict[str, Any] = {"cache": False, "cache_salt": "mine", "priority": 3}


@function
def several_calls(s: State) -> None:
    s += gen("a") + select("b", [" x", " y"]) + gen("c", n=2, temperature=1.0)
    for branch in s.fork(2):
        branch += gen("d")


def _routings(backend: ScriptedBackend) -> set[Routing]:
    return {call.routing for call in backend.calls}


def test_every_call_of_a_run_carries_them() -> None:
    backend = ScriptedBackend(" x")
    several_calls.run(backend=backend, **ROUTED).sync()
    assert len(backend.calls) == 6
    assert _routings(backend) == {Routing(False, "mine", 3)}


def test_a_run_that_says_nothing_asks_for_nothing() -> None:
    backend = ScriptedBackend(" x", unsupported=("cache", "cache_salt", "priority"))
    several_calls.run(backend=backend).sync()
    assert _routings(backend) == {Routing()}


def test_a_batch_and_the_decorator() -> None:
    @function(**ROUTED)
    def program(s: State, x: str) -> None:
        s += x + gen("a")

    backend = ScriptedBackend("b")
    program.run_batch([("1",), ("2",)], backend=backend, priority=4)[1].sync()
    assert _routings(backend) == {Routing(False, "mine", 4)}
    assert program.with_options(cache=None, cache_salt=None, priority=None).options.routing(Routing()) == Routing()


def test_runs_that_a_program_starts_inherit_what_they_do_not_say() -> None:
    @function(priority=9)
    def inner(s: State) -> None:
        s += gen("a")

    @function
    def outer(s: State) -> None:
        inner().sync()

    backend = ScriptedBackend("b")
    outer.run(backend=backend, **ROUTED).sync()
    assert _routings(backend) == {Routing(False, "mine", 9)}


def test_writing_ahead_carries_them() -> None:
    @function(num_api_spec_tokens=8, **ROUTED)
    def program(s: State) -> None:
        s += gen("a", stop="\n") + "\n" + gen("b", stop="\n")

    backend = ScriptedBackend("1\n2\n")
    program.run(backend=backend).sync()
    assert [call.routing for call in backend.calls] == [Routing(False, "mine", 3)]


@pytest.mark.parametrize("name", ROUTED)
def test_a_backend_without_them_refuses_by_name(name: str) -> None:
    backend = ScriptedBackend("b", unsupported=(name,))
    with pytest.raises(UnsupportedParameter, match=repr(name)):
        several_calls.run(backend=backend, **{name: ROUTED[name]})
    assert not backend.calls


@pytest.mark.parametrize(
    ("name", "wrong"), [("cache", 1), ("cache_salt", 5), ("priority", 1.5), ("priority", -(2**32))]
)
def test_wrong_values_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        several_calls.run(backend=ScriptedBackend("b"), **{name: wrong})
