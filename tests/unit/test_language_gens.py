"""In which ways a gen is written: one text or several samples, drawn or by beam search, with thoughts kept apart."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from lmprog import ScriptedBackend, State, beam, function, gen, separate_reasoning
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
