"""A step that fails surfaces in every read, as the very same exception, soon, and nothing is left running."""

from __future__ import annotations

import contextvars
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import lmprog
from lmprog import (
    BackendUnavailable,
    BlockingRead,
    Cancelled,
    InvalidArgument,
    RunTimeout,
    ScriptedBackend,
    UnknownVariable,
    function,
    gen,
    steps,
    turns,
    user,
)
from lmprog.steps import FIRST_BACKOFF, pause_before
from lmprog.timer import timer
from tests.support.language import PROGRAMS, counting, error_of, forked, joined, no_threads_left, straight

pytestmark = pytest.mark.timeout(20)


@function
def two_steps(s):
    s += "first " + gen("a")
    time.sleep(0.1)
    s += "second " + gen("b")


@pytest.mark.parametrize("delay", [0, 0.02, 0.15])
def test_every_read_raises_the_original_error(delay: float) -> None:
    boom = RuntimeError("boom")
    backend = ScriptedBackend(boom, delay=delay)
    with no_threads_left():
        state = two_steps.run(backend=backend)
        reads: list[Any] = [
            lambda: state["a"],
            lambda: state["b"],
            lambda: state["typo"],
            state.text,
            state.messages,
            state.sync,
            lambda: list(state.text_iter()),
            lambda: list(state.text_iter("b")),
            lambda: state.get_meta_info("a"),
            lambda: state.ret_value,
        ]
        assert [error_of(read) for read in reads] == [boom] * len(reads)
        assert state.error() is boom
    assert backend.open_streams == 0
    line = two_steps.__wrapped__.__code__.co_firstlineno + 2
    assert boom.__notes__ == [f"In gen('a') of program 'two_steps', {__file__}:{line}."]  # type: ignore[attr-defined]


def test_traceback_does_not_grow_with_reads() -> None:
    state = straight.run(backend=ScriptedBackend(RuntimeError("boom")))
    depths = []
    for _ in range(5):
        error = error_of(lambda: state["a"])
        assert error is not None
        depths.append(_depth(error))
    assert len(set(depths)) == 1


def _depth(error: BaseException) -> int:
    count, traceback = 0, error.__traceback__
    while traceback is not None:
        count, traceback = count + 1, traceback.tb_next
    return count


def test_note_names_the_branch() -> None:
    boom = RuntimeError("boom")
    state = joined.run(backend=counting(errors={3: boom}))
    assert error_of(state.text) is boom
    assert "In gen('v') of program 'joined', branch 1" in boom.__notes__[0]  # type: ignore[attr-defined]


def test_steps_after_a_failure_never_reach_the_model() -> None:
    backend = ScriptedBackend(RuntimeError("boom"))
    two_steps.run(backend=backend)
    assert len(backend.calls) == 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
@pytest.mark.parametrize("delay", [0, 0.001])
def test_fault_at_every_call(program: Any, delay: float) -> None:
    """Whatever call fails: the original error in every read, no thread and no stream left, in time.

    A failure of a branch that nobody reads or joins is the branch's alone; it stands in its place in the record.
    """
    healthy = counting(delay=delay)
    program.run(backend=healthy).sync()
    for k in range(1, len(healthy.calls) + 1):
        boom = RuntimeError(f"boom at call {k}")
        backend = counting(delay=delay, errors={k: boom})
        with no_threads_left():
            _expect_in_every_read(boom, program, backend)
        assert backend.open_streams == 0
        assert backend.running == 0


def _expect_in_every_read(boom: RuntimeError, program: Any, backend: ScriptedBackend) -> None:
    try:
        state = program.run(backend=backend)
    except RuntimeError as error:  # the body itself read the failed value
        assert error is boom  # noqa: PT017
        return
    assert [record for record in state.record.walk() if record.error is boom]
    if state.error() is not None:
        reads = [
            state.text,
            state.messages,
            *(partial(state.__getitem__, n) for n in (*state.variables(), "never_set")),
        ]
        assert [error_of(read) for read in reads] == [boom] * len(reads)


@pytest.mark.parametrize("stream", [False, True])
def test_exception_of_the_body(stream: bool) -> None:
    oops = KeyError("oops")

    @function
    def wrong(s):
        s += "x" + gen("a")
        raise oops

    backend = counting(delay=0.005)
    with no_threads_left():
        if stream:
            state = wrong.run(backend=backend, stream=True)
            assert error_of(lambda: state["a"]) is oops
            assert error_of(lambda: list(state.text_iter())) is oops
        else:
            assert error_of(lambda: wrong.run(backend=backend)) is oops
    assert backend.open_streams == 0


def test_body_may_catch_and_go_on_in_a_branch() -> None:
    @function
    def careful(s):
        with s.fork(2) as branches:
            branches += "x" + gen("v")
        values = []
        for branch in branches:
            try:
                values.append(branch["v"])
            except OSError:
                values.append("fallback")
        s += " ".join(values)

    assert careful.run(backend=counting(errors={2: OSError("down")})).text() == " n1 fallback"


def test_timeout_ends_run_and_streams() -> None:
    backend = counting(delay=5)
    with no_threads_left():
        error = error_of(lambda: forked.run(backend=backend, timeout=0.05))
        assert isinstance(error, RunTimeout)
        assert re.search("'forked' took longer than its 0.05 seconds", str(error))
    assert backend.open_streams == backend.running == 0


def test_runs_that_a_program_started_stop_with_it() -> None:
    @function
    def inner(s):
        s += gen("x")
        return s["x"]

    @function
    def outer(s):
        return inner().ret_value

    backend = counting(delay=5)
    with no_threads_left():
        assert isinstance(error_of(lambda: outer.run(backend=backend, timeout=0.05)), RunTimeout)
    assert backend.open_streams == backend.running == 0


def test_timeout_that_is_not_needed_leaves_no_thread() -> None:
    with no_threads_left():
        assert straight.run(backend=counting(), timeout=60)["a"] == " n1"


def test_cancel() -> None:
    @function
    def slow(s):
        s += "x" + gen("a")
        branches = s.fork(2)
        branches += "y" + gen("v")
        branches.join()

    backend = counting(delay=lambda call: 5 if call.number > 1 else 0)
    with no_threads_left():
        state = slow.run(backend=backend)
        state.cancel()
        assert isinstance(error_of(lambda: state["a"]), Cancelled)
    assert backend.open_streams == backend.running == 0
    assert all(isinstance(call.error, Cancelled) for call in backend.calls[1:])


def test_retries_only_when_unreachable() -> None:
    backend = counting(errors={1: BackendUnavailable("down"), 2: BackendUnavailable("down")})
    with no_threads_left():
        assert straight.run(backend=backend, retries=2)["a"] == " n3"
    refused = counting(errors={1: RuntimeError("no")})
    assert isinstance(error_of(straight.run(backend=refused, retries=2).text), RuntimeError)
    assert len(refused.calls) == 1


@pytest.mark.parametrize(("attempt", "longest"), [(1, 0.25), (2, 0.5), (3, 1.0), (6, 8.0), (40, 8.0)])
def test_pauses_grow_up_to_a_limit_with_jitter(attempt: int, longest: float) -> None:
    pauses = [pause_before(attempt) for _ in range(200)]
    assert longest / 2 <= min(pauses) < max(pauses) <= longest
    assert max(pauses) - min(pauses) > longest / 4


def test_each_retry_waits_for_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def ring_at_once(seconds: float, callback: Callable[[], None]) -> Any:
        waited.append(seconds)
        callback()

    monkeypatch.setattr(steps.timer, "call_later", ring_at_once)
    state = straight.run(backend=ScriptedBackend(BackendUnavailable("down")), retries=3)
    assert isinstance(error_of(state.text), BackendUnavailable)
    assert [FIRST_BACKOFF * 2**n / 2 <= pause <= FIRST_BACKOFF * 2**n for n, pause in enumerate(waited)] == [True] * 3


def test_retries_run_out() -> None:
    down = BackendUnavailable("down")
    backend = ScriptedBackend(down)
    state = straight.run(backend=backend, retries=1)
    assert error_of(state.text) is down
    assert len(backend.calls) == 2


def test_no_retry_once_text_has_been_streamed() -> None:
    class Breaks(ScriptedBackend):
        def open_stream(self) -> Any:
            stream = super().open_stream()

            def generate(call: Any, sink: Any) -> Any:
                sink.delta("half an ")
                sink.fail(BackendUnavailable("gone"))
                return None

            stream.generate = generate  # type: ignore[method-assign]
            return stream

    state = straight.run(backend=Breaks("x"), stream=True, retries=3)
    assert isinstance(error_of(state.text), BackendUnavailable)


def test_cancel_while_waiting_to_retry() -> None:
    backend = ScriptedBackend(BackendUnavailable("down"))
    with no_threads_left(0.2):
        state = straight.run(backend=backend, retries=5)
        state.cancel()
        assert isinstance(error_of(state.text, 0.1), Cancelled)
    assert (len(backend.calls), backend.open_streams) == (1, 0)


def test_scripted_function_may_run_programs_and_read_them() -> None:
    """User code on a thread of the machinery (here: the timer's) may block on reads."""

    @function
    def inner(s):
        s += "inner" + gen("w") + gen("x")

    def answer(call: Any) -> str:
        if call.prompt.startswith("inner"):
            return "deep"
        return str(inner.run(backend=backend)["x"])

    backend = ScriptedBackend(answer, delay=0.005)

    @function
    def outer(s):
        s += "outer" + gen("a") + gen("b") + gen("c")

    with no_threads_left():
        assert outer.run(backend=backend).text() == "outerdeepdeepdeep"


def test_reading_the_state_from_inside_its_own_step_is_said() -> None:
    states: list[Any] = []

    @function
    def program(s):
        states.append(s)
        s += "x" + gen("a")

    backend = ScriptedBackend(lambda _: states[0]["a"])
    assert isinstance(error_of(program.run(backend=backend).text), BlockingRead)


def test_interrupt_in_a_turn_leaves_the_others_their_turns() -> None:
    ran: list[int] = []

    def interrupted() -> None:
        for number in range(3):
            turns.take(partial(ran.append, number))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        turns.take(interrupted)
    assert ran == [0, 1, 2]


def test_interrupt_fails_the_state_and_leaves_from_where_it_came() -> None:
    class Interrupted(ScriptedBackend):
        def open_stream(self) -> Any:
            stream = super().open_stream()
            stream.begin_role = lambda role: (_ for _ in ()).throw(KeyboardInterrupt())  # type: ignore[method-assign]
            return stream

    @function
    def program(s):
        s += user("x")

    backend = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    assert backend.open_streams == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_timer_outlives_an_alarm_that_raises() -> None:
    def exits() -> None:
        raise RuntimeError("an alarm's own mistake")

    rang = threading.Event()
    with no_threads_left():
        timer.call_later(0.01, exits)
        timer.call_later(0.02, rang.set)
        assert rang.wait(2)


def test_unknown_variable_lists_the_known_ones() -> None:
    state = straight.run(backend=counting())
    with pytest.raises(UnknownVariable, match=r"program 'straight' has no variable 'typo'; it has 'a', 'b', 'c'\."):
        state["typo"]
    with pytest.raises(KeyError):
        state["typo"]


def test_nothing_can_be_appended_after_the_end() -> None:
    state = straight.run(backend=counting())
    with pytest.raises(InvalidArgument, match="has ended"):
        state += "more"


def test_no_backend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmprog.settings, "_set_last", [])  # whatever other tests have set
    with pytest.raises(lmprog.NoBackend, match="No backend is set"):
        contextvars.Context().run(straight.run)


def test_not_a_backend_is_said() -> None:
    with pytest.raises(InvalidArgument, match="backend must be an lmprog backend, not 'gpt'"):
        straight.run(backend="gpt")


def test_stream_operation_that_raises_fails_the_state() -> None:
    class NoSuchRole(ScriptedBackend):
        def open_stream(self) -> Any:
            stream = super().open_stream()
            stream.begin_role = lambda role: (_ for _ in ()).throw(ValueError(f"no role {role}"))  # type: ignore[method-assign]
            return stream

    @function
    def program(s):
        s += user("x")

    assert str(error_of(program.run(backend=NoSuchRole()).text)) == "no role user"
