"""The event-driven executor of one state: its steps run in order, each as soon as the one before has finished.

There is no thread here. Whoever makes the next step possible runs it: the program's thread when it appends to an idle
state, the backend's thread when a model call ends. Nothing blocks but `wait`, and that only until a step ends.

    unstarted --start--> idle --append--> busy --model call--> calling --its end--> busy --no steps left--> idle
    idle --end or failure--> done (the stream is closed)

A failure is final: steps that have not begun never do, and every read raises the same exception object.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from types import TracebackType
from typing import NamedTuple

from lmprog import turns, waiting
from lmprog.backends.base import AS_USUAL, PendingCall, Routing, Stream
from lmprog.errors import BlockingRead, add_note
from lmprog.record import Record
from lmprog.waiting import Callback, Predicate


class Settings(NamedTuple):
    """What holds for all states of one run."""

    wants_deltas: bool = False  # the run streams
    retries: int = 0  # how often a call is made again when the backend cannot be reached
    is_async: bool = False  # the program is an `async def`: it must not block its event loop
    routing: Routing = AS_USUAL  # of every call


class Step(ABC):
    """One thing to do on a stream."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @abstractmethod
    def start(self, executor: Executor) -> bool:
        """Do it. True: finished. False: something will call `executor.resume()`, exactly once, when it is."""

    def abandon(self, error: BaseException) -> None:  # noqa: B027 - most steps have nothing that would wait for them
        """The step will never start, because its state failed."""

    def describe(self) -> str:
        name = f"({self.record.name!r})" if self.record.name else ""
        return f"{self.record.kind}{name}"


class _Phase(Enum):
    UNSTARTED = 0
    IDLE = 1
    BUSY = 2  # a thread is running steps
    CALLING = 3  # a step waits for its end; no thread is involved
    DONE = 4


class Executor:
    def __init__(self, label: str, settings: Settings, record: Record, on_done: Callback | None = None) -> None:
        self.label = label  # for error notes: "program 'judge', branch 'clarity'"
        self.record = record  # of the state as a whole
        self.steps_taken: list[Record] = []  # its children, as long as they grow
        record.children = self.steps_taken
        self.settings = settings
        self.failure: BaseException | None = None
        self._traceback: TracebackType | None = None  # of the failure; raising it again must not make it longer
        self.transcript: list[Record] = []  # all that makes up the text, what came before the fork included
        self.inherited = 0  # how many records of the transcript came from before the fork
        self.is_ended = False
        self._on_done = on_done
        self._stream: Stream | None = None
        self._phase = _Phase.UNSTARTED
        self._steps: deque[Step] = deque()
        self._has_arrived = False  # the running step's end came before its start() had returned
        self._call: PendingCall | None = None
        self._call_rank = 0
        self._wakeups: tuple[Callback, ...] = ()  # most states are never waited for
        self._lock = threading.Lock()
        self._driver: int | None = None  # the thread that is running steps now

    @classmethod
    def closed(cls, label: str, record: Record, transcript: Sequence[Record] = ()) -> Executor:
        """One that has run all it ever will."""
        executor = cls(label, Settings(), record)
        executor._phase, executor.transcript = _Phase.DONE, list(transcript)
        return executor

    @property
    def stream(self) -> Stream:
        assert self._stream is not None, "steps run only after start()"
        return self._stream

    @property
    def is_idle(self) -> bool:
        """All that was appended has run."""
        return self._phase in (_Phase.IDLE, _Phase.DONE)

    @property
    def is_done(self) -> bool:
        """Nothing will ever run any more."""
        return self._phase is _Phase.DONE or self.failure is not None

    # -- what the program does ------------------------------------------------------------------------------------

    def start(self, stream: Stream, transcript: Iterable[Record] = ()) -> None:
        """Begin to run steps on `stream`, which this executor now owns."""
        with self._lock:
            has_failed = self._phase is _Phase.DONE
            if not has_failed:
                self._stream, self._phase = stream, _Phase.BUSY
                self.transcript = list(transcript)
                self.inherited = len(self.transcript)
        if has_failed:
            stream.close()
        else:
            self.record.started, self.record.status = time.perf_counter(), "running"
            self._drain()

    def append(self, step: Step) -> None:
        with self._lock:
            failure = self.failure
            if failure is None:
                self._steps.append(step)
                if self._phase is not _Phase.IDLE:
                    return
                self._phase = _Phase.BUSY
        if failure is not None:
            step.abandon(failure)
        else:
            self._drain()

    def end(self) -> None:
        """Nothing will be appended any more: close the stream when all has run."""
        with self._lock:
            self.is_ended = True
            is_idle = self._phase is _Phase.IDLE
            if is_idle:
                self._phase = _Phase.BUSY
        if is_idle:
            self._drain()
        else:
            self.wake()

    def fail(self, error: BaseException, step: Step | None = None) -> None:
        """Fail for good, unless that or the end has come before. A running model call is cancelled."""
        with self._lock:
            if self.failure is not None or self._phase is _Phase.DONE:
                return
            self.failure, self._traceback = error, error.__traceback__
            dropped, self._steps = self._steps, deque()
            call, phase = self._call, self._phase
            if phase in (_Phase.IDLE, _Phase.UNSTARTED):
                self._phase = _Phase.BUSY
        _mark_failed(self.record, error)
        if step is not None:
            _mark_failed(step.record, error)
            add_note(error, f"In {step.describe()} of {self.label}, {step.record.location or 'no program line'}.")
        for each in dropped:
            each.abandon(error)
        if call is not None:
            call.cancel()
        if phase in (_Phase.IDLE, _Phase.UNSTARTED):
            self._drain()
        self.wake()

    # -- running --------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """The step whose start() returned, or will return, False has finished. Any thread."""
        with self._lock:
            self._call, self._call_rank = None, 0
            if self._phase is not _Phase.CALLING:
                self._has_arrived = True
                return
            self._phase = _Phase.BUSY
        self._drain()

    def now_calling(self, call: PendingCall, rank: int = 0) -> None:
        """Remember what the running step waits for, to cancel it when the state fails.

        A call may fail, and be followed by another, before the one who made it gets here: the higher rank stays.
        """
        with self._lock:
            if not self._has_arrived and rank >= self._call_rank:
                self._call, self._call_rank = call, rank
            has_failed = self.failure is not None
        if has_failed:
            call.cancel()

    def finish(self, step: Step) -> None:
        """Mark a step as done and tell who waits for it."""
        step.record.ended, step.record.status = time.perf_counter(), "done"
        self.wake()

    def _drain(self) -> None:
        """Run steps, here or, when this thread is already running steps of another state, right after those."""
        turns.take(self._drain_now)

    def _drain_now(self) -> None:
        self._driver = threading.get_ident()
        while (step := self._next()) is not None:
            if not self._run(step) and not self._goes_on():
                return
        if self._phase is _Phase.DONE:
            self._close()
        self.wake()

    def _next(self) -> Step | None:
        with self._lock:
            if self._steps:
                return self._steps.popleft()
            self._driver = None
            is_last = self.is_ended or self.failure is not None
            self._phase = _Phase.DONE if is_last else _Phase.IDLE
            return None

    def _run(self, step: Step) -> bool:
        """True when the next step may run."""
        step.record.started, step.record.status = time.perf_counter(), "running"
        try:
            is_finished = step.start(self)
        except Exception as error:
            self.fail(error, step)
            return True
        except BaseException as error:  # an interrupt also belongs to the thread that it hit
            self.fail(error, step)
            self._drain_now()
            raise
        if is_finished:
            self.finish(step)
        return is_finished

    def _goes_on(self) -> bool:
        """Whether the running step has ended meanwhile. If not, this thread leaves, and its end will resume."""
        with self._lock:
            if self._has_arrived:
                self._has_arrived = False
                return True
            self._phase, self._driver = _Phase.CALLING, None
            return False

    def _close(self) -> None:
        if self.failure is None:
            self.record.ended, self.record.status = time.perf_counter(), "done"
        stream, on_done, self._stream, self._on_done = self._stream, self._on_done, None, None
        if stream is not None:
            stream.close()
        if on_done is not None:
            on_done()

    def take_stream_of(self, other: Executor) -> None:
        """Go on with the stream of an executor that is idle, and that ends now."""
        stream, other._stream = other.stream, None
        self.go_on_with(stream)
        other.end()

    def go_on_with(self, stream: Stream) -> None:
        """Own another stream in place of the one there was."""
        mine, self._stream = self.stream, stream
        mine.close()

    # -- waiting --------------------------------------------------------------------------------------------------

    def subscribe(self, is_ready: Predicate, callback: Callback) -> bool:
        """Unless `is_ready()`, call `callback` once at the next change. True: it will be called."""
        with self._lock:
            if is_ready():
                return False
            self._wakeups = (*self._wakeups, callback)
            return True

    def wake(self) -> None:
        """Something changed: those who wait look again."""
        with self._lock:
            if not self._wakeups:
                return
            wakeups, self._wakeups = self._wakeups, ()
        for each in wakeups:
            each()

    def wait(self, is_ready: Predicate) -> None:
        """Block until `is_ready()`; raises the state's failure."""
        self.settle(is_ready)
        self.raise_failure()

    def settle(self, is_ready: Predicate) -> None:
        """Block until `is_ready()` or failure."""
        waiting.settle((self,), lambda: self.failure is not None or is_ready())

    async def wait_async(self, is_ready: Predicate) -> None:
        await self.settle_async(is_ready)
        self.raise_failure()

    async def settle_async(self, is_ready: Predicate) -> None:
        await waiting.settle_async((self,), lambda: self.failure is not None or is_ready())

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(self._traceback)

    def refuse_to_deadlock(self) -> None:
        if self._driver == threading.get_ident():
            raise BlockingRead("A state was read from inside the very step that the read would have to wait for.")
        if self.settings.is_async and waiting.is_in_event_loop():
            raise BlockingRead(
                "This read would block the event loop;",
                hint='write `await s` (all that was appended) or `await s.aget("name")` (one variable) before it.',
            )


def _mark_failed(record: Record, error: BaseException) -> None:
    record.ended, record.status, record.error = time.perf_counter(), "failed", error
