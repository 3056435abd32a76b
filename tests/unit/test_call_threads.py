"""Calls on threads: each ends once, whoever ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from lmprog.backends.base import Once, Sink
from lmprog.backends.threads import CallThreads, Report
from lmprog.errors import Cancelled


class Heard:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.ends: list[Any] = []
        self.has_ended = threading.Event()
        self.sink = Sink(self.texts.append, self._end, self._end)

    def _end(self, outcome: Any) -> None:
        self.ends.append(outcome)
        self.has_ended.set()

    def end(self) -> Any:
        assert self.has_ended.wait(5)
        (end,) = self.ends
        return end


def test_one_of_many_is_first() -> None:
    for _ in range(50):
        once, start = Once(), threading.Barrier(4)
        firsts: list[bool] = []

        def ask(once: Once = once, start: threading.Barrier = start, firsts: list[bool] = firsts) -> None:
            start.wait(5)
            firsts.append(once.is_first())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(firsts) == [False, False, False, True]
        assert once.is_over


def test_pieces_and_a_result() -> None:
    def work(report: Report) -> int:
        for text in ("a", "", "b"):
            report(text)
        return 20

    calls, heard = CallThreads(1, "test"), Heard()
    calls.start(heard.sink, work, lambda answer: answer + 1)
    assert (heard.end(), heard.texts) == (21, ["a", "b"])
    calls.close()


def fails(*_: Any) -> Any:
    raise KeyError("no")


@pytest.mark.parametrize(("work", "finish"), [(fails, int), (lambda _: 1, fails)])
def test_every_error_reaches_the_program(work: Callable[[Report], Any], finish: Callable[[Any], Any]) -> None:
    calls, heard = CallThreads(1, "test"), Heard()
    calls.start(heard.sink, work, finish)
    assert isinstance(heard.end(), KeyError)
    calls.close()


def test_a_cancelled_call_is_not_finished_and_its_stream_is_left() -> None:
    go_on, left = threading.Event(), threading.Event()
    finished: list[int] = []
    cancelled: list[int] = []

    def work(report: Report) -> int:
        assert go_on.wait(5)
        try:
            report("late")
        except Cancelled:
            left.set()
        return 1

    calls, heard = CallThreads(1, "test"), Heard()
    call = calls.start(heard.sink, work, finished.append, lambda: cancelled.append(1))
    call.cancel()
    call.cancel()
    go_on.set()
    calls.close()
    assert left.is_set()
    assert isinstance(heard.end(), Cancelled)
    assert (heard.texts, finished, cancelled) == ([], [], [1])


def test_closing_waits_for_what_runs_and_cancels_what_waits() -> None:
    go_on, runs = threading.Event(), threading.Event()

    def work(_: Report) -> str:
        runs.set()
        assert go_on.wait(5)
        return "done"

    calls, heard = CallThreads(1, "test"), [Heard() for _ in range(3)]
    for each in heard:
        calls.start(each.sink, work, str)
    assert runs.wait(5)
    closing = threading.Thread(target=calls.close)
    closing.start()
    assert all(isinstance(each.end(), Cancelled) for each in heard[1:])
    go_on.set()
    closing.join()
    assert heard[0].end() == "done"
    late = Heard()
    calls.start(late.sink, work, str)
    assert isinstance(late.end(), Cancelled)
