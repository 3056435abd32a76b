"""Recording the calls of a backend, and replaying them without it."""

from __future__ import annotations

import json
import threading

import pytest

from lmprog import ScriptedBackend, assistant, function, gen, select, user
from lmprog.backends.base import GenerateCall, GenerateResult, ScoreCall, Sink, TokenLogprob, Usage
from lmprog.backends.replay import RecordingBackend, ReplayBackend
from lmprog.backends.tape import decoded_error, decoded_result, encoded_error, encoded_result
from lmprog.errors import (
    BackendError,
    BackendUnavailable,
    Cancelled,
    InvalidArgument,
    PromptTooLong,
    ReplayMismatch,
    UnsupportedParameter,
)
from lmprog.sampling import Sampling
from tests.support.language import PROGRAMS, counting


@function
def chat(s, question="What is it?"):
    s += user(question) + assistant(gen("answer", max_tokens=5, temperature=0.5, stop=["\n"]))
    s += user("Sure?") + assistant(select("sure", ["yes", "no"]) + gen("why"))


def recorded(path, run, **options):
    with RecordingBackend(counting(**options), path) as backend:
        return run(backend)


def outcome(program, backend, **options):
    """All that a reader of a run can see."""
    run = program.run(backend=backend, **options)
    steps = [(r.kind, r.name, r.text, r.usage, dict(r.timing), dict(r.meta), repr(r.error)) for r in run.record.walk()]
    return run.text() if run.error() is None else "", steps


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("streams", [False, True])
def test_a_replay_is_the_run(program, streams, tmp_path):
    path = tmp_path / "calls.jsonl"
    first = recorded(path, lambda backend: outcome(program, backend, stream=streams))
    replay = ReplayBackend(path)
    assert outcome(program, replay, stream=streams) == first
    assert replay.unused() == []


@pytest.mark.parametrize("failing", range(1, 8))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_replay_fails_as_the_run_did(program, failing, tmp_path):
    path = tmp_path / "calls.jsonl"
    error = BackendUnavailable("gone", hint="try later.")
    first = recorded(path, lambda backend: error_of(program, backend), errors={failing: error})
    assert error_of(program, ReplayBackend(path)) == first


def error_of(program, backend):
    try:
        error = program.run(backend=backend).error()
    except Exception as raised:
        error = raised
    return type(error), str(error)


def test_deltas_are_replayed(tmp_path):
    path = tmp_path / "calls.jsonl"
    backend = ScriptedBackend("one two three", token_delay=0.001)

    def pieces(backend):
        return list(chat_once.run(backend=backend, stream=True).text_iter("x"))

    with RecordingBackend(backend, path) as recording:
        first = pieces(recording)
    entry = json.loads(path.read_text().splitlines()[1])
    assert "".join(entry["deltas"]) == "".join(first) == "one two three"
    assert "".join(pieces(ReplayBackend(path))) == "one two three"


@function
def chat_once(s):
    s += user("Hi") + assistant(gen("x"))


def test_order_does_not_matter(tmp_path):
    """Eight runs at once, recorded with random delays, replayed with none."""
    path = tmp_path / "calls.jsonl"
    questions = [{"question": f"Question {i}?"} for i in range(8)]
    backend = ScriptedBackend(lambda call: f"{hash(call.prompt)} x", delay=lambda call: call.number * 7 % 5 / 1000)
    with RecordingBackend(backend, path) as recording:
        first = [run.text() for run in chat.run_batch(questions, backend=recording)]
    assert [run.text() for run in chat.run_batch(questions[::-1], backend=ReplayBackend(path))] == first[::-1]


def test_equal_calls_are_used_in_their_order(tmp_path):
    path = tmp_path / "calls.jsonl"
    first = recorded(path, lambda backend: [chat_once.run(backend=backend)["x"] for _ in range(3)])
    replay = ReplayBackend(path)
    assert [chat_once.run(backend=replay)["x"] for _ in range(3)] == first == [" n1", " n2", " n3"]
    with pytest.raises(ReplayMismatch, match=r"was recorded 3 times, and is made once more: .*Hi"):
        chat_once.run(backend=replay).sync()


def test_text_in_pieces_is_the_same_text(tmp_path):
    path = tmp_path / "calls.jsonl"
    recorded(path, lambda b: function(lambda s: s.__iadd__("ab" + gen("x"))).run(backend=b).sync())
    run = function(lambda s: s.__iadd__("a").__iadd__("b").__iadd__(gen("x"))).run(backend=ReplayBackend(path))
    assert run["x"] == " n1"


# -- mismatches -----------------------------------------------------------------------------------------------------


@pytest.fixture
def replay(tmp_path):
    path = tmp_path / "calls.jsonl"
    recorded(path, lambda backend: chat.run(backend=backend).sync())
    return ReplayBackend(path)


def difference(replay, program, **arguments):
    with pytest.raises(ReplayMismatch) as caught:
        program.run(backend=replay, **arguments).sync()
    return str(caught.value)


def test_another_prompt_is_shown_with_its_place(replay):
    said = difference(replay, chat, question="What was it?")
    assert said.startswith("No recorded call is like this one. The closest, call 1, differs: at character ")
    assert "after '<|im_start|>user\\nWhat ', it has 'is it?" in said
    assert "and now there is 'was it?" in said


def test_other_parameters_are_named(replay):
    @function
    def other(s):
        s += user("What is it?") + assistant(gen("answer", max_tokens=6, stop=["\n"], heal=False))

    said = difference(replay, other)
    assert "call 1, differs: max_tokens was 5 and is 6, temperature was 0.5 and is None" in said
    assert "heal was None and is False" in said


def test_a_later_call_that_differs_is_the_one_that_is_named(replay):
    @function
    def other(s):
        s += user("What is it?") + assistant(gen("answer", max_tokens=5, temperature=0.5, stop=["\n"]))
        s += user("Sure?") + assistant(select("sure", ["yes", "maybe"]))

    assert "call 2, differs: choices was ['yes', 'no'] and is ['yes', 'maybe']" in difference(replay, other)
    assert replay.unused() == [2, 3]


def test_another_branch_is_named(tmp_path):
    path = tmp_path / "calls.jsonl"

    def branching(index):
        @function
        def program(s):
            s += "x"
            branches = s.fork(2)
            branches[index] += gen("v")
            s += branches[index]["v"]

        return program

    recorded(path, lambda backend: branching(0).run(backend=backend).sync())
    assert "it was made in branch (0,), and is made in branch (1,)" in difference(ReplayBackend(path), branching(1))


def test_a_kind_of_call_that_was_not_recorded(tmp_path):
    path = tmp_path / "calls.jsonl"
    recorded(path, lambda backend: chat_once.run(backend=backend).sync())
    said = difference(ReplayBackend(path), function(lambda s: s.__iadd__("a" + select("x", ["b", "c"]))))
    assert said == "No score call was recorded; this one has the prompt 'a'."


# -- what backends say of themselves ----------------------------------------------------------------------------------


def test_the_replay_supports_what_the_backend_did(tmp_path):
    path = tmp_path / "calls.jsonl"
    defaults = Sampling(temperature=0.25, stop=("a", "b"), logit_bias={3: -1.0})
    with RecordingBackend(ScriptedBackend("x", unsupported=["top_k"], defaults=defaults), path) as backend:
        assert backend.name == "scripted"
        assert backend.server_info()["backend"] == "scripted"
        assert backend.defaults == defaults
        chat_once.run(backend=backend).sync()
    replay = ReplayBackend(path)
    assert replay.defaults == defaults
    assert chat_once.run(backend=replay)["x"] == "x"
    assert replay.supports("regex")
    with pytest.raises(UnsupportedParameter, match="The replay backend has no 'top_k'"):
        chat_once.run(backend=replay, top_k=3)


def test_all_of_the_backend_can_be_reached(tmp_path):
    inner = ScriptedBackend("x")
    with RecordingBackend(inner, tmp_path / "calls.jsonl") as backend:
        backend.warm_prefix("prefix")
        backend.flush_cache()
        assert inner.warmed == ["prefix"]
        assert backend.supports("min_p")
    run = chat_once.run(backend=ReplayBackend(tmp_path / "calls.jsonl"))
    assert isinstance(run.error(), ReplayMismatch)
    assert inner.open_streams == 0


def test_streams_of_the_backend_are_closed(tmp_path):
    inner = counting()
    with RecordingBackend(inner, tmp_path / "calls.jsonl") as backend:
        for program in PROGRAMS:
            program.run(backend=backend).sync()
    assert inner.open_streams == 0


# -- the file -------------------------------------------------------------------------------------------------------


def test_a_record_is_not_overwritten(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text("precious")
    with pytest.raises(InvalidArgument, match=r"calls.jsonl exists; delete it first"):
        RecordingBackend(ScriptedBackend("x"), path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a record of calls"),
        ('{"format": "other"}\n', "is not a record of calls"),
        ('{"format": "lmprog calls 1"}\n{"call": 1, "ki', "Line 2 of .* is not JSON; if recording was interrupted"),
    ],
)
def test_a_file_that_is_no_record(tmp_path, content, message):
    path = tmp_path / "calls.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match=message):
        ReplayBackend(path)


def test_a_program_hears_that_it_cannot_be_recorded(tmp_path):
    backend = RecordingBackend(ScriptedBackend("x"), tmp_path / "calls.jsonl")
    backend.close()
    run = chat_once.run(backend=backend)
    with pytest.raises(ValueError, match="closed file"):
        run.sync()
    failing = RecordingBackend(ScriptedBackend(RuntimeError("boom")), tmp_path / "others.jsonl")
    failing.close()
    error = chat_once.run(backend=failing).error()
    assert str(error) == "boom"
    assert any("could not be recorded" in note for note in error.__notes__)


def test_lone_surrogates_and_infinities_survive(tmp_path):
    path = tmp_path / "calls.jsonl"
    result = GenerateResult(
        "a\ud800b",
        "stop",
        None,
        True,
        Usage(1, 0, 1, 0),
        (1, 2),
        (TokenLogprob("a", 1, float("-inf"), (("b", -0.1),)), TokenLogprob("b", 2, None)),
        {"total": 0.1},
        {"segments": (("generated", "a"),), "list": [1, (2,)], "nested": {"tuple": [3]}},
    )
    assert decoded_result("generate", json.loads(json.dumps(encoded_result(result)))) == result

    class Odd(ScriptedBackend):
        def _generate(self, call, known_words):
            return result

    def read(backend):
        run = chat_once.run(backend=backend)
        return run["x"], run.get_meta_info("x")

    with RecordingBackend(Odd("x"), path) as backend:
        first = read(backend)
    assert read(ReplayBackend(path)) == first


def test_results_that_json_cannot_hold_are_refused():
    for meta in ({"x": object()}, {"x": {1: 2}}):
        result = GenerateResult("a", "stop", None, True, Usage(), meta=meta)
        with pytest.raises(InvalidArgument, match="cannot be recorded"):
            encoded_result(result)


# -- errors ---------------------------------------------------------------------------------------------------------


class Strange(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLong("10 tokens do not fit in 5.", hint="shorten it."),
        BackendUnavailable("gone"),
        RuntimeError("boom"),
        OSError(2, "No such file"),
        KeyError("k"),
        Cancelled("taken back"),
    ],
)
def test_errors_come_back_as_they_were(error):
    back = decoded_error(json.loads(json.dumps(encoded_error(error))))
    assert (type(back), str(back), back.args) == (type(error), str(error), error.args)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Strange("odd", {1, 2}), "Strange: "),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec"),
    ],
)
def test_other_errors_are_named(error, said):
    back = decoded_error(json.loads(json.dumps(encoded_error(error))))
    assert type(back) is BackendError
    assert str(back).startswith(said)


def test_names_in_a_record_make_no_other_objects():
    back = decoded_error({"type": "eval", "arguments": ["1 + 1"]})
    assert type(back) is BackendError


def test_mistakes_raised_at_once_are_replayed(tmp_path):
    class Refusing(ScriptedBackend):
        def open_stream(self):
            stream = super().open_stream()
            stream.generate = refuse
            return stream

    def refuse(call, sink):
        raise PromptTooLong("too long")

    path = tmp_path / "calls.jsonl"
    with RecordingBackend(Refusing("x"), path) as backend:
        assert isinstance(chat_once.run(backend=backend).error(), PromptTooLong)
    assert isinstance(chat_once.run(backend=ReplayBackend(path)).error(), PromptTooLong)


def test_a_call_that_was_cancelled_is_cancelled_at_once(tmp_path):
    path = tmp_path / "calls.jsonl"
    got = []
    sink = Sink(lambda text: None, got.append, got.append)
    with RecordingBackend(ScriptedBackend("x", delay=60), path) as backend:
        stream = backend.open_stream()
        stream.generate(GenerateCall(Sampling()), sink).cancel()
    ReplayBackend(path).open_stream().generate(GenerateCall(Sampling()), sink).cancel()
    assert [type(each) for each in got] == [Cancelled, Cancelled]


def test_recording_from_many_threads_keeps_lines_whole(tmp_path):
    path = tmp_path / "calls.jsonl"
    with RecordingBackend(ScriptedBackend("x" * 10_000, scores=dict.fromkeys("ab", -1.0)), path) as backend:
        sink = Sink(lambda text: None, lambda result: None, lambda error: None)

        def work(stream):
            for _ in range(20):
                stream.append_text("t")
                stream.generate(GenerateCall(Sampling()), sink)
                stream.score(ScoreCall(("a", "b")), sink)

        threads = [threading.Thread(target=work, args=(backend.open_stream(),)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["call"] for line in lines[1:]) == list(range(1, 161))
