"""Beam search against trying all texts."""

from __future__ import annotations

from typing import Any

import pytest

from lmprog import (
    BackendUnavailable,
    Cancelled,
    InvalidArgument,
    ScriptedBackend,
    State,
    UnsupportedParameter,
    beam,
    function,
    gen,
    steps,
)
from tests.support.language import error_of, no_threads_left
from tests.support.table_model import END, TOKENS, TableBackend, logprobs_after, texts_up_to

PROMPTS = [f"prompt {i}" for i in range(12)]


@function
def search(s: State, prompt: str, width: int, penalty: float, **options: Any) -> None:
    s += prompt + beam(gen("x", **options), width=width, length_penalty=penalty)


def value(ids: tuple[int, ...], logprob: float, penalty: float) -> float:
    return logprob / len(ids) ** penalty


def reference_beam(prompt: str, width: int, limit: int, penalty: float) -> tuple[int, ...]:
    """The textbook: no early end, no streams."""
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended = []
    for _ in range(limit):
        grown = [
            ((*ids, token), logprob + more)
            for ids, logprob in alive
            for token, more in sorted(enumerate(logprobs_after(prompt, ids)), key=lambda pair: -pair[1])[:width]
        ]
        best = sorted(grown, key=lambda pair: -pair[1])[:width]
        ended += [pair for pair in best if pair[0][-1] == END]
        alive = [pair for pair in best if pair[0][-1] != END]
    return max([*ended, *alive], key=lambda pair: value(*pair, penalty))[0]


@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_beam_that_is_wide_enough_finds_the_best_of_all_texts(prompt: str, penalty: float) -> None:
    state = search.run(prompt, 4**4, penalty, max_tokens=4, backend=TableBackend())
    best, logprob = max(texts_up_to(prompt, 4), key=lambda pair: value(*pair, penalty))
    found = state.get_meta_info("x")
    assert found["token_ids"] == best
    assert found["beams"][0]["logprob"] == pytest.approx(logprob)
    assert state["x"] == "".join(TOKENS[token] for token in best)
    assert state.text() == prompt + state["x"]


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_narrow_beam_is_the_textbooks(prompt: str, width: int) -> None:
    for penalty in (0.0, 1.0):
        state = search.run(prompt, width, penalty, max_tokens=6, backend=TableBackend())
        assert state.get_meta_info("x")["token_ids"] == reference_beam(prompt, width, 6, penalty)


def test_losers_are_freed_and_the_search_is_bounded() -> None:
    backend = TableBackend()
    state = search.run("p", 3, 1.0, max_tokens=40, ignore_eos=True, backend=backend)
    state.sync()
    assert len(state["x"]) == 40
    assert backend.open_streams == 0
    assert backend.most_streams <= 1 + 3 * 3
    assert backend.calls <= 2 * 3 * 40
    assert state.usage.completion_tokens == backend.calls


def test_ends_as_soon_as_nothing_better_can_come() -> None:
    """With whole probabilities, a text that has ended early stays the best, whatever else could follow."""
    best = max((logprobs_after(p, ())[END], p) for p in PROMPTS)[1]
    assert logprobs_after(best, ())[END] == max(logprobs_after(best, ()))
    backend = TableBackend()
    search.run(best, 2, 0.0, max_tokens=1000, backend=backend).sync()
    assert backend.calls < 50


def test_a_long_search_needs_no_deep_stack() -> None:
    assert len(search.run("p", 2, 1.0, max_tokens=1500, ignore_eos=True, backend=TableBackend())["x"]) == 1500


def test_what_follows_goes_on_with_the_best() -> None:
    """The stream has the very tokens; with a stop inside of them, the text before it."""

    @function
    def program(s: State) -> None:
        s += "p" + beam(gen("x", max_tokens=5, ignore_eos=True), width=3)
        s += beam(gen("y", max_tokens=2, ignore_eos=True), width=2) + "!" + beam(gen("z", max_tokens=2), width=1)

    state = program.run(backend=TableBackend())
    first = reference_without_end("p", (), 3, 5)
    assert state.get_meta_info("x")["token_ids"] == first
    assert state.get_meta_info("y")["token_ids"] == reference_without_end("p", first, 2, 2)
    assert state.text() == "p" + state["x"] + state["y"] + "!" + state["z"]


def reference_without_end(prompt: str, before: tuple[int, ...], width: int, limit: int) -> tuple[int, ...]:
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(limit):
        grown = []
        for ids, logprob in alive:
            logprobs = logprobs_after(prompt, before + ids)[:END]
            ranked = sorted(enumerate(logprobs), key=lambda pair: -pair[1])[:width]
            grown += [((*ids, token), logprob + more) for token, more in ranked]
        alive = sorted(grown, key=lambda pair: -pair[1])[:width]
    return alive[0][0]


def test_stop_cuts_the_text() -> None:
    for prompt in PROMPTS:
        whole = search.run(prompt, 4**3, 1.0, max_tokens=3, ignore_eos=True, backend=TableBackend())["x"]
        state = search.run(prompt, 4**3, 1.0, max_tokens=3, ignore_eos=True, stop=[whole[1:3]], backend=TableBackend())
        assert whole[1:3] not in state["x"]
        assert all(whole[1:3] not in each["text"] for each in state.get_meta_info("x")["beams"])
        assert state.text() == prompt + state["x"]


def test_fewest_tokens() -> None:
    for prompt in PROMPTS:
        state = search.run(prompt, 4, 0.0, max_tokens=5, min_tokens=3, backend=TableBackend())
        assert len(state["x"]) >= 3


@pytest.mark.parametrize("k", range(1, 12))
def test_fault_at_every_call(k: int) -> None:
    backend = TableBackend(errors={k: RuntimeError("boom")})
    state = search.run("p", 3, 1.0, max_tokens=4, ignore_eos=True, backend=backend)
    with pytest.raises(RuntimeError, match="boom") as caught:
        _ = state["x"]
    assert any("gen('x')" in note for note in getattr(caught.value, "__notes__", ()))
    assert backend.open_streams == 0


def test_every_call_that_could_not_reach_the_model_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "FIRST_BACKOFF", 0.001)
    options: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
    undisturbed = search.run("p", 3, 1.0, backend=TableBackend(), **options)["x"]
    for offset in range(3):
        backend = TableBackend(errors={k: BackendUnavailable("down") for k in range(1 + offset, 200, 3)})
        state = search.run("p", 3, 1.0, backend=backend, retries=5, **options)
        assert state["x"] == undisturbed
        assert backend.open_streams == 0


def test_retries_of_a_call_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "FIRST_BACKOFF", 0.001)
    down = BackendUnavailable("down")
    backend = TableBackend(errors=dict.fromkeys(range(4, 200), down))  # one call a round: the second token is down
    state = search.run("p", 1, 1.0, max_tokens=4, ignore_eos=True, backend=backend, retries=2)
    assert error_of(lambda: state["x"]) is down
    assert (backend.calls, backend.open_streams) == (3 + 1 + 2, 0)


def test_other_failures_are_not_tried_again() -> None:
    backend = TableBackend(errors={2: RuntimeError("boom")})
    state = search.run("p", 3, 1.0, max_tokens=4, ignore_eos=True, backend=backend, retries=5)
    assert isinstance(error_of(lambda: state["x"]), RuntimeError)
    assert backend.calls <= 4


def test_cancel_while_waiting_to_retry() -> None:
    backend = TableBackend(errors=dict.fromkeys(range(2, 200), BackendUnavailable("down")))
    with no_threads_left():
        state = search.run("p", 3, 1.0, max_tokens=4, ignore_eos=True, backend=backend, retries=5)
        state.cancel()
        assert isinstance(error_of(lambda: state["x"]), Cancelled)
    assert backend.open_streams == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature has no meaning"),
        ({"n": 2}, "n has no meaning"),
        ({"regex": "a+"}, "beam is for free text"),
        ({"repetition_penalty": 1.5}, "repetition_penalty has no meaning"),
    ],
)
def test_what_it_cannot_obey_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        beam(gen("x", **options))


def test_parameters_of_the_run() -> None:
    """Those of drawing do not count; others that it cannot obey are refused."""
    expected = search.run("p", 2, 1.0, max_tokens=4, backend=TableBackend())["x"]
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "backend": TableBackend()}
    assert search.run("p", 2, 1.0, max_tokens=4, **options)["x"] == expected
    with pytest.raises(InvalidArgument, match="frequency_penalty has no meaning"):
        search.run("p", 2, 1.0, backend=TableBackend(), frequency_penalty=1.0)


def test_arguments() -> None:
    for width in (0, 1.5):
        with pytest.raises(InvalidArgument, match="width"):
            beam(gen("x"), width=width)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="length_penalty"):
        beam(gen("x"), length_penalty=-1)
    with pytest.raises(InvalidArgument, match="beam takes a gen"):
        beam("text")  # type: ignore[arg-type]


def test_backends_that_cannot() -> None:
    with pytest.raises(UnsupportedParameter, match="top_logprobs"):
        search.run("p", 2, 1.0, backend=ScriptedBackend("x", unsupported=["top_logprobs"]))
    with pytest.raises(UnsupportedParameter, match="ids of the likeliest tokens"):
        _ = search.run("p", 2, 1.0, backend=ScriptedBackend("x"))["x"]


def test_beam_in_a_graph() -> None:
    @function
    def program(s: State, q: str) -> None:
        s += q + beam(gen("x", max_tokens=3))

    expected = search.run("p", 4, 1.0, max_tokens=3, backend=TableBackend())["x"]
    assert program.trace().run(q="p", backend=TableBackend())["x"] == expected
    assert "beam   x max_tokens=3 width=4 length_penalty=1.0" in str(program.trace()).splitlines()[-1]


def test_usage_is_that_of_every_call() -> None:
    """Each round has a call that asks and one that writes, per text that is alive; their tokens all count."""
    backend = TableBackend()
    state = search.run("p", 2, 1.0, max_tokens=3, ignore_eos=True, backend=backend)
    state.sync()
    (record,) = [each for each in state.record.walk() if each.kind == "gen"]
    assert state.usage == record.usage
    assert state.usage.completion_tokens == backend.calls == (1 + 2) + (2 + 2) + (2 + 2)
