"""The public double: its scripts, its cuts, its failures and its log."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from lmprog.backends.base import Constraint, GenerateCall, GenerateResult, ScoreCall, ScoreResult, Sink
from lmprog.backends.scripted import ScriptedBackend, ScriptedStream
from lmprog.errors import Cancelled, InvalidArgument
from lmprog.sampling import Sampling


class Collected:
    """A sink that keeps what it got."""

    def __init__(self) -> None:
        self.deltas: list[str] = []
        self.result: Any = None
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self.sink = Sink(self.deltas.append, self._done, self._fail)

    def _done(self, result: Any) -> None:
        assert not self.ended.is_set()
        self.result = result
        self.ended.set()

    def _fail(self, error: BaseException) -> None:
        assert not self.ended.is_set()
        self.error = error
        self.ended.set()

    def outcome(self) -> Any:
        assert self.ended.wait(2)
        if self.error is not None:
            raise self.error
        return self.result


def generate(
    backend: ScriptedBackend, prompt: str = "", constraint: Constraint | None = None, **sampling: Any
) -> GenerateResult:
    stream = backend.open_stream()
    stream.append_text(prompt)
    collected = Collected()
    stream.generate(GenerateCall(Sampling(**sampling), constraint), collected.sink)
    result: GenerateResult = collected.outcome()
    return result


def score(backend: ScriptedBackend, choices: list[str], prompt: str = "", unconditional: bool = False) -> ScoreResult:
    stream = backend.open_stream()
    stream.append_text(prompt)
    collected = Collected()
    stream.score(ScoreCall(choices, unconditional), collected.sink)
    result: ScoreResult = collected.outcome()
    return result


def test_one_answer_for_all() -> None:
    assert generate(ScriptedBackend("yes"), "anything").text == "yes"


def test_pattern_nearest_to_the_end_answers() -> None:
    backend = ScriptedBackend({"France": "Paris", "Japan": "Tokyo"})
    assert generate(backend, "France, then Japan").text == "Tokyo"
    assert generate(backend, "Japan, then France").text == "Paris"


def test_first_of_equally_near_patterns_answers() -> None:
    assert generate(ScriptedBackend({"an$": "first", "Japan$": "second"}), "Japan").text == "first"


def test_no_pattern_found_is_said() -> None:
    with pytest.raises(InvalidArgument, match="No scripted answer matches the prompt that ends with 'Spain'"):
        generate(ScriptedBackend({"France": "Paris"}), "Spain")


def test_list_answers_in_turn_and_says_when_it_runs_out() -> None:
    backend = ScriptedBackend(["a", {"x": "b"}])
    assert [generate(backend, "x").text, generate(backend, "x").text] == ["a", "b"]
    with pytest.raises(InvalidArgument, match="has 2 answers in turn, and call 3"):
        generate(backend, "x")


def test_function_sees_the_call_and_its_result_may_be_any_script() -> None:
    backend = ScriptedBackend(lambda call: {"a": call.prompt * 2, "z": "no"})
    assert generate(backend, "a").text == "aa"


def test_scripted_errors_come_as_they_are() -> None:
    boom = RuntimeError("boom")
    with pytest.raises(RuntimeError) as caught:
        generate(ScriptedBackend({"x": boom}), "x")
    assert caught.value is boom


def test_injected_error_hits_its_call_only() -> None:
    backend = ScriptedBackend("ok", errors={2: OSError("down")})
    assert generate(backend).text == "ok"
    with pytest.raises(OSError, match="down"):
        score(backend, ["a", "b"])
    assert generate(backend).text == "ok"
    assert [call.number for call in backend.calls] == [1, 2, 3]


def test_not_a_script() -> None:
    with pytest.raises(InvalidArgument, match="not int"):
        ScriptedBackend(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("stops", [("]", ",", '"'), ('"', ",", "]"), (",", '"', "]")])
def test_stop_that_comes_first_in_the_text_wins_in_any_order(stops: tuple[str, ...]) -> None:
    result = generate(ScriptedBackend('John", "x]'), stop=stops)
    assert (result.text, result.matched_stop, result.finish_reason) == ("John", '"', "stop")


def test_longest_of_stops_at_one_place_is_reported() -> None:
    assert generate(ScriptedBackend("a when it hit"), stop=(" when", " when it hit")).matched_stop == " when it hit"


def test_stop_of_several_words_leaves_nothing() -> None:
    assert generate(ScriptedBackend("it broke when it hit the wall"), stop=(" when it hit",)).text == "it broke"


def test_stop_at_the_first_character() -> None:
    result = generate(ScriptedBackend("\nfoo"), stop=("\n",))
    assert (result.text, result.matched_stop) == ("", "\n")


def test_stop_before_min_tokens_does_not_end_the_text() -> None:
    result = generate(ScriptedBackend("a b. c d e f. g"), stop=(".",), min_tokens=5)
    assert result.text == "a b. c d e f"


def test_stop_regex() -> None:
    assert generate(ScriptedBackend("abc 123 def"), stop_regex=r"\s\d+").text == "abc"


@pytest.mark.parametrize(("limit", "text", "reason"), [(1, "a", "length"), (2, "a b", "length"), (3, "a b c", "stop")])
def test_max_tokens_counts_words(limit: int, text: str, reason: str) -> None:
    result = generate(ScriptedBackend("a b c"), max_tokens=limit)
    assert (result.text, result.finish_reason, result.usage.completion_tokens) == (text, reason, limit)


@pytest.mark.parametrize(
    ("constraint", "bad"),
    [
        (Constraint("regex", "[0-9]+"), "12a"),
        (Constraint("choices", '["a", "b"]'), "c"),
        (Constraint("json_schema", "{}"), "{"),
    ],
)
def test_answer_that_breaks_its_constraint_is_the_scripts_mistake(constraint: Constraint, bad: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(repr(bad))):
        generate(ScriptedBackend(bad), constraint=constraint)
    assert not generate(ScriptedBackend(bad, checks_constraints=False), constraint=constraint).is_complete


def test_constraint_cut_by_max_tokens_is_incomplete() -> None:
    result = generate(ScriptedBackend('{"a": 1}'), constraint=Constraint("json_schema", "{}"), max_tokens=1)
    assert (result.text, result.is_complete, result.finish_reason) == ('{"a":', False, "length")


def test_scores_follow_the_answer() -> None:
    best = score(ScriptedBackend({"sky": " blue"}), ["green", "blue", "very dark"], prompt="The sky is").choices
    assert [c.logprobs for c in best] == [(-5.0,), (-0.1,), (-5.0, -5.0)]


def test_scores_given_and_unconditional() -> None:
    backend = ScriptedBackend(
        scores={"a": -1.0, "b": [-2.0, -3.0]}, unconditional_scores=lambda _: {"a": -4.0, "b": -5.0}
    )
    a, b = score(backend, ["a", "b"], unconditional=True).choices
    assert (a.logprobs, a.unconditional, b.logprobs, b.unconditional) == ((-1.0,), (-4.0,), (-2.0, -3.0), (-5.0,))
    with pytest.raises(InvalidArgument, match="no score for the choice 'c'"):
        score(backend, ["a", "c"])


def test_fork_keeps_what_was_computed() -> None:
    backend = ScriptedBackend("x")
    stream = backend.open_stream()
    stream.append_text("one two three")
    first = Collected()
    stream.generate(GenerateCall(Sampling()), first.sink)
    child = stream.fork(2)[1]
    child.append_text(" more")
    second = Collected()
    child.generate(GenerateCall(Sampling()), second.sink)
    assert first.outcome().usage == (3, 0, 1, 0)
    assert second.outcome().usage == (4, 3, 1, 0)
    assert isinstance(child, ScriptedStream)
    assert child.text == "one two threex morex"


def test_streams_are_counted_and_close_is_idempotent() -> None:
    backend = ScriptedBackend("x")
    stream = backend.open_stream()
    children = stream.fork(2)
    assert backend.open_streams == 3
    for each in [stream, *children, stream]:
        each.close()
    assert backend.open_streams == 0


def test_deltas_add_up() -> None:
    collected = Collected()
    ScriptedBackend("a  b\nc ").open_stream().generate(GenerateCall(Sampling(), wants_deltas=True), collected.sink)
    assert collected.deltas == ["a", "  b", "\nc", " "]
    assert collected.outcome().text == "a  b\nc "


def test_delay_needs_one_thread_for_all_and_none_afterwards() -> None:
    before = threading.active_count()
    backend = ScriptedBackend("x", delay=0.02)
    collected = [Collected() for _ in range(50)]
    for each in collected:
        backend.open_stream().generate(GenerateCall(Sampling()), each.sink)
    assert (backend.running, threading.active_count()) == (50, before + 1)
    assert [each.outcome().text for each in collected] == ["x"] * 50
    for thread in threading.enumerate():
        if thread.name == "lmprog-timer":
            thread.join(1)
    assert (backend.running, backend.peak_running, threading.active_count()) == (0, 50, before)


def test_cancel_reports_once_and_the_stream_is_unchanged() -> None:
    backend = ScriptedBackend("x", delay=5)
    stream = backend.open_stream()
    collected = Collected()
    pending = stream.generate(GenerateCall(Sampling()), collected.sink)
    pending.cancel()
    pending.cancel()
    with pytest.raises(Cancelled):
        collected.outcome()
    assert isinstance(stream, ScriptedStream)
    assert stream.text == ""
    assert isinstance(backend.calls[0].error, Cancelled)


def test_token_delay_spreads_the_deltas_and_cancel_stops_them() -> None:
    collected = Collected()
    got_two = threading.Event()
    sink = Sink(
        lambda text: (collected.deltas.append(text), len(collected.deltas) == 2 and got_two.set()),
        collected.sink.done,
        collected.sink.fail,
    )  # type: ignore[arg-type, return-value]
    backend = ScriptedBackend("a b c d e f", token_delay=0.05)
    pending = backend.open_stream().generate(GenerateCall(Sampling(), wants_deltas=True), sink)
    assert got_two.wait(2)
    pending.cancel()
    with pytest.raises(Cancelled):
        collected.outcome()
    assert 2 <= len(collected.deltas) < 6


def test_refuses_what_it_is_told_to() -> None:
    backend = ScriptedBackend(unsupported={"regex", "seed"})
    assert [backend.supports(p) for p in ("regex", "seed", "temperature", "no_such")] == [False, False, True, False]
