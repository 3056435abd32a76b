"""In which ways a gen is written: one text or several samples, drawn or by beam search, with thoughts kept apart."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from lmprog import InvalidArgument, ScriptedBackend, State, beam, function, gen, separate_reasoning
from lmprog.sampling import OF_ONE_CALL
from tests.support.table_model import TableBackend

ONE = [{"n": 1}, {"best_of": 1}, {"n": 1, "best_of": 1}]
SEVERAL = [{"n": 3}, {"best_of": 3}, {"n": 1, "best_of": 3}, {"n": 3, "best_of": 3}]


@pytest.mark.parametrize("where", ["gen", "run"])
@pytest.mark.parametrize(("options", "has_thoughts"), [*product([{}, *ONE], [False, True]), *product(SEVERAL, [False])])
def test_calls_of_the_model_never_have_a_number_of_samples(
    where: str, options: dict[str, Any], has_thoughts: bool
) -> None:
    """Samples are branches: a backend's call is for one text, however the number of texts was given."""

    @function
    def program(s: State) -> None:
        one = gen("x", temperature=1.0, **(options if where == "gen" else {}))
        s += separate_reasoning(one, "qwen3") if has_thoughts else one

    backend = ScriptedBackend(["a", "b", "c"])
    state = program.run(backend=backend, **(options if where == "run" else {}))
    assert state["x"] in ("a", ["a"], ["a", "b", "c"])
    assert len(backend.calls) == max(options.values(), default=1)
    assert all(set(call.sampling.given()) <= OF_ONE_CALL for call in backend.calls)


@pytest.mark.parametrize("options", ONE)
def test_a_beam_in_a_run_of_one_sample(options: dict[str, Any]) -> None:
    @function
    def program(s: State) -> None:
        s += "p" + beam(gen("x", max_tokens=3), width=2)

    expected = program.run(backend=TableBackend())["x"]
    assert program.run(backend=TableBackend(), **options)["x"] == expected


WAYS = {
    "several samples": {"n": 2},
    "samples": {"best_of": 2},
    "beam": {"is_beam": True},
    "separate_reasoning": {"has_thoughts": True},
}


def written(is_beam: bool = False, has_thoughts: bool = False, **options: Any) -> Any:
    node = gen("x", max_tokens=3, **options)
    node = beam(node, width=2) if is_beam else node
    return separate_reasoning(node, "qwen3") if has_thoughts else node


@pytest.mark.parametrize("where", ["gen", "run", "program"])
@pytest.mark.parametrize(("one", "other"), [pair for pair in combinations(WAYS, 2) if pair[1] != "samples"])
def test_of_two_ways_to_write_a_gen_none_is_dropped_silently(where: str, one: str, other: str) -> None:
    options = {**WAYS[one], **WAYS[other]}
    sampling = {name: options.pop(name) for name in ("n", "best_of") if name in options}
    backend = ScriptedBackend("<think>hm</think>yes")

    @function(**(sampling if where == "program" else {}))
    def program(s: State) -> None:
        s += written(**options, **(sampling if where == "gen" else {}))

    with pytest.raises(InvalidArgument) as caught:
        program.run(backend=backend, **(sampling if where == "run" else {}))
    named = "n has no meaning", "best_of has no meaning"  # of beams, which refuse those as soon as they are written
    assert (one in str(caught.value) and other in str(caught.value)) or str(caught.value).startswith(named)
    assert backend.calls == []


def test_all_ways_at_once_name_two() -> None:
    @function
    def program(s: State) -> None:
        s += written(is_beam=True, has_thoughts=True)

    with pytest.raises(InvalidArgument, match=r"several samples .* and beam"):
        program.run(backend=ScriptedBackend("x"), n=2)
