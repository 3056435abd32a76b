"""`select`: rules, degenerate lists, draws, and how it differs from a constrained gen."""

from __future__ import annotations

import math
from typing import Any

import pytest

import lmprog
from lmprog import ScriptedBackend, function, gen, select
from lmprog.backends.base import ChoiceScore, ScoreCall, Sink
from lmprog.choices import METHODS, pick


def run(node: Any, backend: ScriptedBackend, **options: Any) -> Any:
    @function
    def program(s):
        s += "Pick:" + node

    return program.run(backend=backend, **options)


# Scores with the length bias of a real model: one token of -5, one of -10, three of -3.6 on average.
BIASED = {"cat": [-5.04], "category": [-10.32], "catalogue": [-4.0, -3.6, -3.3]}


@pytest.mark.parametrize(
    ("method", "winner"),
    [
        ("token_length_normalized", "catalogue"),
        ("sum_logprob", "cat"),
        ("per_byte", "catalogue"),
        ("greedy_token_selection", "catalogue"),
        ("unconditional_likelihood_normalized", "cat"),
    ],
)
def test_rules(method: str, winner: str) -> None:
    alone = {"cat": [-9.0], "category": [-11.0], "catalogue": [-4.0, -3.0, -3.0]}
    backend = ScriptedBackend(scores=BIASED, unconditional_scores=alone)
    state = run(select("x", list(BIASED), choices_method=method), backend)
    assert state["x"] == winner
    assert state.text() == "Pick:" + winner
    assert backend.calls[0].unconditional == (method == "unconditional_likelihood_normalized")
    info = state.get_meta_info("x")
    assert (info["method"], info["choices"], info["logprobs"]) == (
        method,
        tuple(BIASED),
        tuple(map(tuple, BIASED.values())),
    )
    assert len(info["scores"]) == 3


def test_default_rule_and_all_names_are_public() -> None:
    assert select("x", ["a"]).method is lmprog.token_length_normalized
    assert all(getattr(lmprog, name) is method for name, method in METHODS.items())
    assert run(select("x", list(BIASED), 0.0, lmprog.sum_logprob), ScriptedBackend(scores=BIASED))["x"] == "cat"


def score(
    text: str, logprobs: list[float], ids: list[int] | None = None, alone: list[float] | None = None
) -> ChoiceScore:
    return ChoiceScore(text, tuple(logprobs), tuple(ids or ()), None if alone is None else tuple(alone))


def test_values_of_the_rules() -> None:
    a, b = score("ab", [-1.0, -3.0], alone=[-2.0, -5.0]), score("é", [-2.0], alone=[-2.0])
    assert METHODS["token_length_normalized"]([a, b]) == [-2.0, -2.0]
    assert METHODS["sum_logprob"]([a, b]) == [-4.0, -2.0]
    assert METHODS["per_byte"]([a, b]) == [-2.0, -1.0]
    assert METHODS["unconditional_likelihood_normalized"]([a, b]) == [1.5, 0.0]


def test_greedy_walks_the_token_trie() -> None:
    """The first token decides between groups, the next within them; a choice that ended takes part with its mean."""
    walk = METHODS["greedy_token_selection"]
    kill, skill, skull = (
        score("kill", [-3.0], [1]),
        score("skill", [-1.0, -9.0], [2, 3]),
        score("skull", [-1.0, -8.0], [2, 4]),
    )
    assert walk([kill, skill, skull]) == [0, 0, 1]
    cat, catalogue = score("cat", [-1.0], [5]), score("catalogue", [-1.0, -0.5], [5, 6])
    assert walk([cat, catalogue]) == [0, 1]
    assert walk([cat, score("catalogue", [-1.0, -2.0], [5, 6])]) == [1, 0]
    assert walk([score("a", [-1.0]), score("b", [-1.0])]) == [1, 0]  # a tie: the earlier one
    assert walk([score("only", [])]) == [1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("choices", [["x"], ["a", "a"], ["", "b"], ["cat", "catalogue"], [str(i) for i in range(5000)]])
def test_degenerate_lists(method: str, choices: list[str]) -> None:
    def even(call: Any) -> dict[str, Any]:
        return {choice: [-1.0] * len(choice) for choice in call.choices}

    state = run(select("x", choices, choices_method=method), ScriptedBackend(scores=even, unconditional_scores=even))
    assert state["x"] in choices
    if len(set(choices)) == 1:
        assert state.text() == "Pick:" + choices[0]


def test_one_choice_needs_no_model_unless_its_logprobs_are_wanted() -> None:
    backend = ScriptedBackend(scores={"x": [-0.5]})
    assert run(select("x", ["x", "x"]), backend)["x"] == "x"
    assert backend.calls == []
    assert run(select("x", ["x"], logprobs=True), backend).get_meta_info("x")["logprobs"] == ((-0.5,),)
    assert len(backend.calls) == 1


def test_empty_choice_wins_by_sum_and_loses_by_mean() -> None:
    scores = {"": [], "b": [-0.1]}
    assert run(select("x", ["b", ""], choices_method="sum_logprob"), ScriptedBackend(scores=scores))["x"] == ""
    for method in ("token_length_normalized", "per_byte"):
        assert run(select("x", ["", "b"], choices_method=method), ScriptedBackend(scores=scores))["x"] == "b"


def test_prefix_never_loses_to_its_continuation_by_sum() -> None:
    scores = {"cat": [-2.0], "catalogue": [-2.0, -0.0]}
    assert (
        run(select("x", ["cat", "catalogue"], choices_method="sum_logprob"), ScriptedBackend(scores=scores))["x"]
        == "cat"
    )


def test_unencodable_choice_is_the_backends_error_in_the_right_place() -> None:
    class Picky(ScriptedBackend):
        def _score(self, call: Any, known_words: int) -> Any:
            raise lmprog.UnencodableText("The choice 'a\\x04' has a character without a token: U+0004.")

    with pytest.raises(ValueError, match=r"choice 'a\\x04'"):
        run(select("x", ["a\x04", "b"]), Picky())["x"]


def test_select_takes_the_best_whole_choice_and_a_constrained_gen_goes_step_by_step() -> None:
    """A fake model whose first token favours the bad choice: a greedy gen is lured, select is not."""
    tokens = {"skill": [-0.1, -9.0], "kill": [-2.0]}
    best = run(select("x", ["skill", "kill"]), ScriptedBackend(scores=tokens))
    greedy = run(
        select("x", ["skill", "kill"], choices_method="greedy_token_selection"), ScriptedBackend(scores=tokens)
    )
    assert (best["x"], greedy["x"]) == ("kill", "skill")


def test_gen_with_choices_is_select() -> None:
    state = run(gen("x", choices=["no", "yes"]), ScriptedBackend({"Pick:$": " yes"}))
    assert state["x"] == "yes"


def test_draws_follow_temperature_and_seed() -> None:
    values = [math.log(0.7), math.log(0.2), math.log(0.1)]
    drawn = [pick(values, 1.0, seed) for seed in range(3000)]
    assert [pick(values, 1.0, seed) for seed in range(50)] == drawn[:50]
    assert [drawn.count(i) / 3000 for i in range(3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    assert {pick(values, 0, None) for _ in range(20)} == {0}
    assert pick([-math.inf, -math.inf], 1.0, 1) == 0


def test_draw_in_a_run_repeats_with_the_seed() -> None:
    backend = ScriptedBackend(scores=lambda call: dict.fromkeys(call.choices, -1.0))
    node = select("x", [str(i) for i in range(50)], temperature=1.0)
    drawn = {run(node, backend, seed=seed)["x"] for seed in range(8)}
    assert len(drawn) > 1
    assert run(node, backend, seed=3)["x"] == run(node, backend, seed=3)["x"]


def test_the_chosen_tokens_are_appended_as_scored() -> None:
    backend = ScriptedBackend(scores={"a": -1.0, "b": -2.0})
    appended: list[ChoiceScore] = []
    stream = backend.open_stream()
    original = type(stream).append_choice
    backend.open_stream = lambda: stream  # type: ignore[method-assign]
    stream.append_choice = lambda choice: (appended.append(choice), original(stream, choice))[1]  # type: ignore[method-assign, func-returns-value]
    assert run(select("x", ["b", "a"]), backend).text() == "Pick:a"
    assert [choice.text for choice in appended] == ["a"]
    results: list[Any] = []
    stream.score(ScoreCall(["a"]), Sink(lambda _: None, results.append, results.append))
    assert backend.calls[-1].prompt == "Pick:a"
