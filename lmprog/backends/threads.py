"""Calls that block a thread each, as those of HTTP clients do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lmprog.backends.base import Once, PendingCall, Sink
from lmprog.errors import Cancelled

Report = Callable[[str], None]
"""Takes pieces of a stream. Raises Cancelled when nobody waits for them, which leaves the client's stream and so closes
the connection."""


class CallThreads:
    """At most `count` calls are under way; others wait their turn."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)

    def start(
        self,
        sink: Sink,
        work: Callable[[Report], Any],
        finish: Callable[[Any], Any],
        on_cancel: Callable[[], None] = lambda: None,
    ) -> PendingCall:
        """Run `work` on a thread. What `finish` makes of its answer, unless the call was cancelled, is the result."""
        call = _ThreadedCall(sink, work, finish, on_cancel)
        try:
            self._pool.submit(call.run).add_done_callback(call.forget)
        except RuntimeError:
            call.fail(Cancelled("The backend is closed; make a new one."))
        return call

    def close(self) -> None:
        """Calls that wait are cancelled; those under way are waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class _ThreadedCall(PendingCall):
    def __init__(
        self,
        sink: Sink,
        work: Callable[[Report], Any],
        finish: Callable[[Any], Any],
        on_cancel: Callable[[], None],
    ) -> None:
        self._sink, self._work, self._finish, self._on_cancel = sink, work, finish, on_cancel
        self._end = Once()

    def cancel(self) -> None:
        if self._end.is_first():
            self._on_cancel()
            self._sink.fail(Cancelled("The call was cancelled."))

    def fail(self, error: BaseException) -> None:
        if self._end.is_first():
            self._sink.fail(error)

    def forget(self, future: Future[None]) -> None:
        if future.cancelled():  # the backend was closed before a thread was free
            self.fail(Cancelled("The backend was closed before the call was made."))

    def run(self) -> None:
        if self._end.is_over:
            return
        try:
            answer = self._work(self._report)
        except BaseException as error:  # a waiting program must hear of it, whatever it is
            self.fail(error)
            return
        if self._end.is_first():
            self._deliver(answer)

    def _deliver(self, answer: Any) -> None:
        try:
            result = self._finish(answer)
        except BaseException as error:  # as above
            self._sink.fail(error)
        else:
            self._sink.done(result)

    def _report(self, text: str) -> None:
        if self._end.is_over:
            raise Cancelled("The call was cancelled.")
        if text:
            self._sink.delta(text)
