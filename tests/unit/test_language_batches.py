"""Batches: results in order, errors in their place, progress, laziness, resuming after a crash."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmprog import (
    Cancelled,
    ConstraintInvalid,
    InvalidArgument,
    PromptTooLong,
    RunTimeout,
    ScriptedBackend,
    UnknownParameter,
    assistant,
    function,
    gen,
    user,
)
from lmprog.backends.base import GenerateResult, Usage
from lmprog.batching import _Workers
from lmprog.timer import timer
from tests.support.language import HeldBackend, counting, error_of, joined, no_threads_left

pytestmark = pytest.mark.timeout(60)
ROOT = Path(__file__).parents[2]


@function
def ask(s, question, regex=None):
    s += user(question) + assistant(gen("answer", regex=regex))
    return question.upper()


def echo(**options: Any) -> ScriptedBackend:
    return ScriptedBackend(lambda call: call.prompt.split("user\n")[1].split("<|")[0], **options)


def questions(count: int) -> list[dict[str, str]]:
    return [{"question": f"q{i}"} for i in range(count)]


def test_results_in_order_whatever_finishes_first() -> None:
    backend = echo(delay=lambda call: 0.02 / call.number)
    with no_threads_left():
        runs = ask.run_batch(questions(20), backend=backend)
    assert [run["answer"] for run in runs] == [f"q{i}" for i in range(20)]
    assert [run.ret_value for run in runs] == [f"Q{i}" for i in range(20)]
    assert backend.open_streams == 0


@pytest.mark.parametrize("progress", [False, True])
def test_one_bad_row_does_not_lose_the_batch(progress: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(call: Any) -> Any:
        if "q4" in call.prompt:
            return PromptTooLong("The prompt has 900 tokens, and the context 512.")
        if "q5" in call.prompt:
            return ConstraintInvalid("Cannot be compiled.")
        return "fine"

    items: list[Any] = questions(6)
    items[2]["regex"] = "ab**"
    with no_threads_left():
        runs = ask.run_batch(items, backend=ScriptedBackend(answer), progress_bar=progress)
    errors = [run.error() for run in runs]
    assert [type(error) for error in errors] == [
        type(None), type(None), InvalidArgument, type(None), PromptTooLong, ConstraintInvalid,
    ]  # fmt: skip
    for run, error in zip(runs, errors, strict=True):
        if error is None:
            assert run["answer"] == "fine"
        else:
            assert error_of(lambda run=run: run["answer"]) is error
    if progress:
        bar = capsys.readouterr().err
        assert "ask: 100%" in bar
        assert "failed=3" in bar


def test_raise_on_error_raises_the_first_in_order_and_cancels_the_rest() -> None:
    boom = [RuntimeError(f"boom {i}") for i in range(8)]
    backend = echo(errors={3: boom[3], 2: boom[2]}, delay=lambda call: 0.05 if call.number == 2 else 0.001)
    with no_threads_left():
        assert (
            error_of(lambda: ask.run_batch(questions(50), backend=backend, num_threads=1, raise_on_error=True))
            is boom[2]
        )
    assert len(backend.calls) < 10
    assert backend.open_streams == 0


def test_empty_and_unsized() -> None:
    assert ask.run_batch([], backend=echo()) == []
    assert [r["answer"] for r in ask.run_batch((q for q in questions(5)), backend=echo(), progress_bar=True)] == [
        f"q{i}" for i in range(5)
    ]


def test_items_may_be_tuples_dicts_and_no_items_are_changed() -> None:
    items: list[Any] = [("a",), ["b"], {"question": "c", "regex": "[a-z]"}]
    before = json.dumps(items)
    runs = ask.run_batch(items, backend=echo())
    assert [run["answer"] for run in runs] == ["a", "b", "c"]
    assert json.dumps(items) == before


def test_bad_items_are_errors_in_their_place() -> None:
    runs = ask.run_batch(["text", {"question": "b"}, {"qestion": "c"}, {}], backend=echo())
    errors = [run.error() for run in runs]
    assert [type(e) for e in errors] == [InvalidArgument, type(None), UnknownParameter, TypeError]
    assert "Item 0 is 'text'" in str(errors[0])
    assert "did you mean 'question'" in str(errors[2])


def test_exception_of_the_body_is_the_items() -> None:
    @function
    def program(s, x):
        s += gen("a")
        return 1 / x

    runs = program.run_batch([{"x": 1}, {"x": 0}], backend=ScriptedBackend("!"))
    assert (runs[0].ret_value, runs[0]["a"]) == (1.0, "!")
    assert isinstance(error_of(lambda: runs[1].ret_value), ZeroDivisionError)


def test_error_of_the_iterable_comes_after_the_items_it_gave() -> None:
    def items() -> Iterator[Any]:
        yield from questions(3)
        raise OSError("disk")

    with no_threads_left():
        runs = ask.run_batch(items(), backend=echo(delay=0.005), generator_style=True)
        assert [next(runs)["answer"] for _ in range(3)] == ["q0", "q1", "q2"]
        with pytest.raises(OSError, match="disk"):
            next(runs)


def test_generator_style_is_lazy_and_bounded() -> None:
    taken = []

    def items() -> Iterator[Any]:
        for item in questions(1000):
            taken.append(item)
            yield item

    with no_threads_left():
        runs = ask.run_batch(items(), backend=echo(), generator_style=True, num_threads=2)
        assert taken == []
        assert next(runs)["answer"] == "q0"
        time.sleep(0.02)
        assert len(taken) <= 6
        assert [next(runs)["answer"] for _ in range(50)] == [f"q{i}" for i in range(1, 51)]
        runs.close()
    assert len(taken) < 70


def test_closing_cancels_what_is_under_way() -> None:
    backend = echo(delay=lambda call: 0 if "q0" in call.prompt else 5)
    with no_threads_left():
        runs = ask.run_batch(questions(100), backend=backend, generator_style=True, num_threads=4)
        next(runs)
        runs.close()
    assert backend.open_streams == backend.running == 0
    assert all(isinstance(call.error, Cancelled) for call in backend.calls if "q0" not in call.prompt)


def test_run_that_begins_while_the_batch_is_cancelled_is_cancelled_too() -> None:
    workers = _Workers(ask, [], 1, {}, None, None)
    workers._cancel()
    run = ask.run("q", backend=echo(delay=5))
    with workers.watching(run):
        assert isinstance(run.error(), Cancelled)


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_at_most_num_threads_under_way(threads: int) -> None:
    backend = echo(delay=0.003)
    ask.run_batch(questions(40), backend=backend, num_threads=threads)
    assert backend.peak_running <= threads
    assert threads == 1 or backend.peak_running > 1


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"num_threads": "many"}, {"key": str}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        ask.run_batch(questions(1), backend=echo(), **options)


def test_unknown_option_is_an_error_of_each_item() -> None:
    runs = ask.run_batch(questions(2), backend=echo(), temprature=0)
    assert all(isinstance(run.error(), UnknownParameter) for run in runs)


def test_as_completed() -> None:
    backend = echo(delay=lambda call: 0.1 if "q0" in call.prompt else 0.001)
    finished = list(ask.as_completed(questions(4), backend=backend, num_threads=4))
    assert sorted(index for index, _ in finished) == [0, 1, 2, 3]
    assert finished[-1][0] == 0
    assert all(run["answer"] == f"q{index}" for index, run in finished)


def test_timeout_is_per_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item has a limit of its own, which is gone when the item is done. The clock is the test's."""
    limits: list[tuple[float, Callable[[], None]]] = []

    class Limit:
        def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
            self._limit = (seconds, callback)
            limits.append(self._limit)

        def cancel(self) -> None:
            limits.remove(self._limit)

    monkeypatch.setattr(timer, "call_later", Limit)
    held = HeldBackend()
    finished = ask.as_completed(questions(3), backend=held, timeout=7.5, num_threads=3)

    def answer_two() -> None:
        for _ in range(2):
            held.sinks.get().done(GenerateResult("x", "stop", None, True, Usage()))

    threading.Thread(target=answer_two).start()
    assert {run.error() for _, run in (next(finished), next(finished))} == {None}
    ((seconds, ring),) = limits
    assert seconds == 7.5
    ring()
    _, late = next(finished)
    assert isinstance(late.error(), RunTimeout)


def test_batch_inside_a_program_belongs_to_it() -> None:
    @function
    def outer(s):
        s["n"] = len(ask.run_batch(questions(5)))

    state = outer.run(backend=echo())
    assert state.usage.completion_tokens == 5


def test_async_programs_in_a_batch() -> None:
    @function
    async def program(s, x):
        s += x + gen("a")
        return await s.aget("a")

    runs = program.run_batch([("1",), ("2",)], backend=ScriptedBackend("!", delay=0.002))
    assert [run.ret_value for run in runs] == ["!", "!"]


# -- resume -------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_second_call_runs_nothing_and_restores_the_runs(tmp_path: Path) -> None:
    out, first, second = tmp_path / "out.jsonl", echo(), echo()
    before = ask.run_batch(questions(5), backend=first, resume=out)
    after = ask.run_batch(questions(5), backend=second, resume=out)
    assert (len(first.calls), len(second.calls)) == (5, 0)
    for a, b in zip(before, after, strict=True):
        assert (a["answer"], a.text(), a.messages(), a.usage, a.ret_value) == (
            b["answer"], b.text(), b.messages(), b.usage, b.ret_value,
        )  # fmt: skip
        assert (b.error(), b.record.status, "answer" in b) == (None, "done", True)
        with pytest.raises(InvalidArgument, match="has ended"):
            b += "more"
        with pytest.raises(InvalidArgument, match="can only be read"):
            b.fork(1)
    assert sorted(line["index"] for line in lines_of(out)) == [0, 1, 2, 3, 4]


def test_failed_items_run_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    runs = ask.run_batch(questions(4), backend=echo(errors={2: OSError("down")}), num_threads=1, resume=out)
    assert isinstance(runs[1].error(), OSError)
    assert len(lines_of(out)) == 3
    backend = echo()
    runs = ask.run_batch(questions(4), backend=backend, resume=out)
    assert [run["answer"] for run in runs] == ["q0", "q1", "q2", "q3"]
    assert len(backend.calls) == 1
    assert len({line["key"] for line in lines_of(out)}) == len(lines_of(out)) == 4


def test_equal_items_are_different_items(tmp_path: Path) -> None:
    backend = counting()
    for expected in (3, 3):
        runs = joined.run_batch([{}] * 3, backend=backend, resume=tmp_path / "out.jsonl", num_threads=1)
        assert len({run["end"] for run in runs}) == 3
        assert len(lines_of(tmp_path / "out.jsonl")) == expected


def test_own_keys(tmp_path: Path) -> None:
    @function
    def program(s, thing):
        s += gen("x")

    items = [{"thing": object()} for _ in range(2)]
    runs = program.run_batch(items, backend=counting(), resume=tmp_path / "a", num_threads=1)
    assert all("give key=" in str(run.error()) for run in runs)
    program.run_batch(items, backend=counting(), resume=tmp_path / "b", key=lambda item: "k", num_threads=1)
    assert [line["key"] for line in lines_of(tmp_path / "b")] == ["k", "k#2"]
    runs = program.run_batch(items, backend=counting(), resume=tmp_path / "c", key=lambda item: 5)
    assert "key must return a text, not 5" in str(runs[0].error())


def test_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    ask.run_batch(questions(3), backend=echo(), resume=out, num_threads=1)
    whole = out.read_bytes()
    for cut in range(len(whole) - 60, len(whole)):
        out.write_bytes(whole[:cut])
        backend = echo()
        runs = ask.run_batch(questions(3), backend=backend, resume=out, num_threads=1)
        assert [run["answer"] for run in runs] == ["q0", "q1", "q2"]
        assert len(backend.calls) == 1
        assert len(lines_of(out)) == 3


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("my notes\n")
    with pytest.raises(InvalidArgument, match=r"Line 1 of .*notes\.txt was not written by a batch"):
        ask.run_batch(questions(1), backend=echo(), resume=out)
    assert out.read_text() == "my notes\n"


def test_two_batches_cannot_use_one_file(tmp_path: Path) -> None:
    runs = ask.run_batch(questions(3), backend=echo(), resume=tmp_path / "o", generator_style=True, num_threads=1)
    next(runs)
    with pytest.raises(InvalidArgument, match="in use by another batch"):
        ask.run_batch(questions(3), backend=echo(), resume=tmp_path / "o")
    runs.close()
    assert len(ask.run_batch(questions(3), backend=echo(), resume=tmp_path / "o")) == 3


def test_values_are_written_as_plain_data(tmp_path: Path) -> None:
    class Mark(enum.Enum):
        GOOD = "good"

    @dataclasses.dataclass
    class Note:
        day: datetime.date
        tags: set[str]

    @function
    def program(s, kind):
        s["mark"], s["note"], s["many"] = Mark.GOOD, Note(datetime.date(2020, 1, 2), {"a"}), (1, None, 2.5)
        if kind == "bad":
            s["bad"] = threading.Lock()

    out = tmp_path / "out.jsonl"
    good, bad = program.run_batch([("good",), ("bad",)], backend=echo(), resume=out)
    assert good["mark"] is Mark.GOOD
    assert isinstance(bad.error(), InvalidArgument)
    restored = program.run_batch([("good",)], backend=echo(), resume=out)[0]
    assert (restored["mark"], restored["note"], restored["many"]) == (
        "good", {"day": "2020-01-02", "tags": ["a"]}, [1, None, 2.5],
    )  # fmt: skip


def test_kill_in_the_middle_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """kill -9 twice, then to the end: one line per item, and only items under way at a kill ran again."""
    out, count = tmp_path / "out.jsonl", 300
    command = [sys.executable, str(ROOT / "tests/support/resumable_batch.py"), str(out), str(count)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    for wanted in (40, 120):
        with subprocess.Popen(command, env=environment) as process:
            until = time.monotonic() + 20
            while (not out.exists() or out.read_bytes().count(b"\n") < wanted) and time.monotonic() < until:
                time.sleep(0.001)
            process.kill()
    finished = out.read_bytes().count(b"\n")
    assert 120 <= finished < count
    end = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert end.stdout.split()[:2] == [str(count), str(count - finished)]
    assert sorted(line["index"] for line in lines_of(out)) == list(range(count))
    assert len({line["key"] for line in lines_of(out)}) == count
    ran = [int(number) for number in Path(f"{out}.ran").read_text().split()]
    assert set(ran) == set(range(count))
    assert len(ran) <= count + 2 * 4
