"""Cases of users that need the default model, each with its number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from lmprog import Runtime, assistant, function, gen, select, user
from tests.support.default_model import default_chat, default_tokenizer
from tests.support.real_model import oracle_logprobs

pytestmark = pytest.mark.model
ALPHABET = "Here is the English alphabet: ABC"


@pytest.fixture(scope="module")
def backend() -> Iterator[Runtime]:
    with Runtime("smollm2-135m", dtype="float32", max_total_tokens=16384) as runtime:
        yield runtime


@function
def samples(s: Any, count: int, temperature: float) -> list[str]:
    s += user("Name an animal.") + "It is"
    with s.fork(count) as branches:
        branches += gen("x", max_tokens=8, temperature=temperature)
    return [branch["x"] for branch in branches]


def test_case_f03_samples_differ_and_repeat_with_the_seed(backend: Runtime) -> None:
    assert len(set(samples.run(8, 1.0, backend=backend).ret_value)) > 1
    seeded = samples.run(8, 1.0, backend=backend, seed=7).ret_value
    assert len(set(seeded)) > 1
    assert samples.run(8, 1.0, backend=backend, seed=7).ret_value == seeded
    with_others = samples.run_batch([(8, 1.0), (3, 1.0), (8, 0.5)], backend=backend, seed=7)
    assert with_others[0].ret_value == seeded
    assert len(set(samples.run(4, 0.0, backend=backend).ret_value)) == 1


def test_case_f05_constrained_and_free_runs_do_not_cross(backend: Runtime) -> None:
    @function
    def program(s: Any, text: str, pattern: str | None) -> None:
        s += text + gen("x", max_tokens=8, temperature=0, regex=pattern)

    patterns = ["[0-9]{3}", "(red|green|blue)", "[A-Z]{2}-[0-9]", None, None, None]
    items = [(f"Item {i}:", pattern) for i, pattern in enumerate(patterns)] * 2
    alone = [program.run(*item, backend=backend)["x"] for item in items[:6]] * 2
    together = [run["x"] for run in program.run_batch(items, backend=backend, num_threads=12)]
    assert together == alone
    for (_, pattern), value in zip(items, together, strict=True):
        assert pattern is None or re.fullmatch(pattern, value)


IPV4 = r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)"


@pytest.mark.parametrize("prompt", ["The IP address of localhost is ", "Write an IPv4 address: "])
def test_case_c13_a_greedy_address_is_one_to_its_end(backend: Runtime, prompt: str) -> None:
    """Where the pattern is satisfied and could go on, the model chooses; where it cannot, the output ends."""

    @function
    def program(s: Any) -> None:
        s += prompt + gen("x", regex=IPV4, max_tokens=40, temperature=0)

    state = program.run(backend=backend)
    assert re.fullmatch(IPV4, state["x"])
    assert state.get_meta_info("x")["finish_reason"] == "stop"


ANIMALS = ["cat", "category", "catalogue"]


@pytest.mark.parametrize(
    ("method", "best"),
    [("sum_logprob", "cat"), ("token_length_normalized", "catalogue"), ("greedy_token_selection", "cat")],
)
def test_case_s01_length_bias_can_be_seen_and_chosen(backend: Runtime, method: str, best: str) -> None:
    @function
    def program(s: Any) -> None:
        s += user("Pick one: a cat, a category, a catalogue. Which word names an animal?")
        s += assistant(select("x", ANIMALS, choices_method=method))

    state = program.run(backend=backend)
    assert state["x"] == best
    sums = [sum(each) for each in state.get_meta_info("x")["logprobs"]]
    assert sums == pytest.approx([-5.04, -10.32, -10.90], abs=0.02)
    assert [len(each) for each in state.get_meta_info("x")["logprobs"]] == [1, 1, 3]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("The capital of France is ", ["Paris", "London"]), ("The capital of France is", [" Paris", " London"])),
        (("See http:", ["//example.com", "//example.org"]), ("See http", ["://example.com", "://example.org"])),
        (('Say {"a":', ['"b"}', "1}"]), ('Say {"a"', [':"b"}', ":1}"])),
    ],
)
def test_case_s02_equal_joint_texts_score_alike(backend: Runtime, one: Any, other: Any) -> None:
    @function
    def program(s: Any, prompt: str, choices: list[str]) -> None:
        s += prompt + select("x", choices, choices_method="sum_logprob")

    first, second = (program.run(*each, backend=backend).get_meta_info("x")["scores"] for each in (one, other))
    assert first[0] - first[1] == pytest.approx(second[0] - second[1], abs=1e-3)
    if one[0].startswith("The capital"):
        assert first[0] == pytest.approx(-0.261, abs=2e-3)
        assert first == pytest.approx(second, abs=1e-3)


def test_case_s02_after_a_chat_header(backend: Runtime) -> None:
    """The header's control tokens stay whole; a blank behind it belongs to the choices, wherever it was written."""

    @function
    def program(s: Any, begun: str, choices: list[str]) -> None:
        s += user("Greet me.")
        with s.assistant():
            s += begun + select("x", choices, choices_method="sum_logprob")

    scores = [
        program.run(*each, backend=backend).get_meta_info("x")["scores"]
        for each in (("", [" Hello", " Goodbye"]), (" ", ["Hello", "Goodbye"]))
    ]
    header = default_chat().render([{"role": "user", "content": "Greet me."}], True)
    for score, other, text in zip(*scores, (" Hello", " Goodbye"), strict=True):
        ids = default_tokenizer().encode(text)
        wanted = sum(oracle_logprobs((*header, *ids))[-len(ids) :])
        assert score == pytest.approx(wanted, abs=1e-3)
        assert other == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "more", "text", "matched"),
    [
        (["J", "GH"], {}, "DEF", "GH"),
        (["GH", "J"], {}, "DEF", "GH"),
        ("GHI", {}, "DEF", "GHI"),  # two tokens
        (["KLMN", "DEFGHIJ"], {}, "", "DEFGHIJ"),  # from the very first character
        (["GH", "LM"], {"min_tokens": 4}, "DEFGHIJK", "LM"),
    ],
)
def test_case_d08_stops_in_the_alphabet(
    backend: Runtime, stream: bool, stop: Any, more: dict[str, Any], text: str, matched: str
) -> None:
    """D08 and U04: the earliest in the text wins; nothing of it is in the variable, the text or any piece."""

    @function
    def program(s: Any) -> None:
        s += ALPHABET + gen("x", max_tokens=8, temperature=0, stop=stop, **more) + "|"

    state = program.run(backend=backend, stream=stream)
    if stream:
        pieces = list(state.text_iter("x"))
        assert "".join(pieces) == text
        assert all(piece in text for piece in pieces)
    assert (state["x"], state.text()) == (text, f"{ALPHABET}{text}|")
    meta = state.get_meta_info("x")
    assert (meta["finish_reason"], meta["matched_stop"]) == ("stop", matched)
    assert meta["completion_tokens"] >= len(default_tokenizer().encode(text)) + 1
