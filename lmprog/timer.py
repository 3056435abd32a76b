"""One thread for everything that happens later: delays, backoff, time limits. It lives only while something is due.

Callbacks run on that thread and must return at once. The exception is user code that a callback leads to (a scripted
answer that runs a program of its own): a read that has to wait there serves the other timers meanwhile, see
`next_due`.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Alarm:
    """A scheduled callback."""

    __slots__ = ("_callback", "_order", "_timer", "when")

    def __init__(self, timer: Timer, when: float, order: int, callback: Callback) -> None:
        self._timer, self.when, self._order = timer, when, order
        self._callback: Callback | None = callback

    def __lt__(self, other: Alarm) -> bool:
        return (self.when, self._order) < (other.when, other._order)

    def cancel(self) -> None:
        """The callback will not start any more. Idempotent."""
        self._callback = None
        self._timer.drop(self)

    @property
    def is_cancelled(self) -> bool:
        return self._callback is None

    def run(self) -> None:
        if (callback := self._callback) is not None:
            callback()


class Timer:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alarms: list[Alarm] = []
        self._orders = itertools.count()
        self._thread: threading.Thread | None = None

    def call_later(self, seconds: float, callback: Callback) -> Alarm:
        """Run `callback` on the timer's thread after `seconds`."""
        alarm = Alarm(self, time.monotonic() + seconds, next(self._orders), callback)
        with self._changed:
            heapq.heappush(self._alarms, alarm)
            if self._thread is None:
                self._start_thread()
            elif self._alarms[0] is alarm:  # sooner than what the thread waits for
                self._changed.notify()
        return alarm

    def drop(self, alarm: Alarm) -> None:
        """Do not wait for a cancelled alarm, if it is the one that the thread is waiting for."""
        with self._changed:
            if self._alarms and self._alarms[0] is alarm:
                self._changed.notify()

    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def next_due(self, is_done: Callable[[], bool]) -> Alarm | None:
        """On the timer's own thread, for one who waits there: what falls due next, or None once `is_done()`.

        Whoever makes that true calls `wake()`.
        """
        return self._next(is_done, leaves_when_empty=False)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="lmprog-timer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while (alarm := self._next(lambda: False, leaves_when_empty=True)) is not None:
                alarm.run()
        except BaseException:  # shown like any error of a thread; the other alarms are still due
            with self._changed:
                self._start_thread()
            raise

    def _next(self, is_done: Callable[[], bool], *, leaves_when_empty: bool) -> Alarm | None:
        with self._changed:
            while not is_done():
                self._drop_cancelled()
                if not self._alarms and leaves_when_empty:
                    self._thread = None  # under the lock: the next call_later starts a new thread
                    return None
                wait = self._alarms[0].when - time.monotonic() if self._alarms else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self._alarms)
                self._changed.wait(wait)
        return None

    def _drop_cancelled(self) -> None:
        while self._alarms and self._alarms[0].is_cancelled:
            heapq.heappop(self._alarms)


timer = Timer()
