"""What the tests of the language share: time limits, leftover threads, and programs of several shapes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from lmprog import ScriptedBackend, assistant, function, gen, select, user
from lmprog.backends.base import EndedCall, GenerateCall, GenerateResult, PendingCall, Sink, Usage
from lmprog.backends.scripted import ScriptedStream


def threads_of_the_language() -> list[threading.Thread]:
    return [
        t
        for t in threading.enumerate()
        if t is not threading.current_thread() and t.name.startswith(("lmprog", "Thread-"))
    ]


@contextmanager
def no_threads_left(seconds: float = 2.0) -> Iterator[None]:
    """All threads that the block started end soon after it."""
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + seconds
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()]
    assert not left, f"threads left: {left}"


def error_of(read: Callable[[], Any], seconds: float = 1.0) -> BaseException | None:
    """What a read raises; it must come to its end within the time."""
    start = time.monotonic()
    try:
        read()
    except BaseException as error:
        return error
    finally:
        assert time.monotonic() - start < seconds, "the read took too long"
    return None


class HeldBackend(ScriptedBackend):
    """Its calls end when the test says so: `sinks.get()` is the sink of the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks: SimpleQueue[Sink] = SimpleQueue()

    def _new_stream(self, text: str, known_words: int) -> ScriptedStream:
        with self._lock:
            self.open_streams += 1
        return _HeldStream(self, text, known_words)

    def words(self, text: str) -> Iterator[str]:
        """Stream a text as the next call's answer, each word once the one before was asked for again."""
        sink = self.sinks.get(timeout=2)
        for word in re.findall(r"\s*\S+", text):
            sink.delta(word)
            yield word
        sink.done(GenerateResult(text, "stop", None, True, Usage()))


class _HeldStream(ScriptedStream):
    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        assert isinstance(self._backend, HeldBackend)
        self._backend.sinks.put(sink)
        return EndedCall()


@function
def straight(s):
    s += "A:" + gen("a") + "\nB:" + gen("b", max_tokens=3)
    s += "\nC:" + select("c", ["x", "y"])


@function
def forked(s):
    s += user("Start.")
    with s.fork(["p", "q", "r"]) as branches:
        for name, branch in branches.items():
            branch += user(f"Branch {name}.") + assistant(gen("v") + " and " + gen("w"))
    s += user(" ".join(branch["v"] for branch in branches)) + assistant(gen("end"))


@function
def joined(s):
    s += "root " + gen("a")
    branches = s.fork(3)
    branches += " leaf " + gen("v")
    branches.join()
    s += " sum " + gen("end")


@function
def appended(s):
    s += "root " + gen("a")
    branches = s.fork(2)
    branches += lambda i: f" leaf {i} " + gen("v")
    branches.join("append_text")
    s += " sum " + gen("end")


@function
def nested(s):
    s += "root"
    for i, branch in enumerate(s.fork(2)):
        branch += f" {i}" + gen("v")
        for k, leaf in enumerate(branch.fork(2)):
            leaf += f".{k}" + gen("leaf")
            branch[f"leaf{k}"] = leaf["leaf"]
        branch += gen("after")
        s[f"branch{i}"] = branch["after"]
    s += gen("end")


@function
def scoped(s):
    with s.user():
        s += "question"
    with s.assistant(), s.var_scope("whole"):
        s += "It is " + gen("x") + "!"
    with s.copy() as scratch:
        scratch += user("try") + assistant(gen("y"))
        s["y"] = scratch["y"]
    s += user("more") + assistant(gen("z", n=3, temperature=1.0))


@function
def caller(s):
    s += "outer " + gen("a")
    s["called"] = straight()["b"]
    s.call(joined)


PROGRAMS = [straight, forked, joined, appended, nested, scoped, caller]


def counting(**options: Any) -> ScriptedBackend:
    """Answers with the number of the call, so that every output is different."""
    return ScriptedBackend(
        lambda call: f" n{call.number}", scores=lambda call: dict.fromkeys(call.choices, -1.0), **options
    )
