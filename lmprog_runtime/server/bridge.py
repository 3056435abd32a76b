"""From asyncio to the engine thread and back. Leaving a run early, for whatever reason, aborts it in the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from lmprog_runtime.engine import Engine
from lmprog_runtime.request import Completion, Delta, GenerateRequest, ScoreRequest, ScoreResult, Sink

Request = GenerateRequest | ScoreRequest
Event = Delta | Completion | ScoreResult
T = TypeVar("T")


class Runs:
    """Some requests that were submitted together, as an async context: on exit those not finished are aborted."""

    def __init__(
        self, engine: Engine, requests: Sequence[Request], observe: Callable[[Completion], None] = lambda _: None
    ) -> None:
        self._engine, self._requests, self._observe = engine, list(requests), observe
        self._queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._ids: list[int] = []
        self._unfinished = set(range(len(self._requests)))

    async def __aenter__(self) -> Runs:
        sinks = [self._sink(index) for index in range(len(self._requests))]
        submission = self._loop.run_in_executor(None, self._engine.submit_group, self._requests, sinks)
        try:
            self._ids = await asyncio.shield(submission)
        except asyncio.CancelledError:  # the thread goes on and will have submitted them
            submission.add_done_callback(lambda done: self._abort(done.result()))
            raise
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._abort([self._ids[index] for index in self._unfinished])

    def _abort(self, ids: Sequence[int]) -> None:
        for job_id in ids:
            self._engine.abort(job_id)

    def _sink(self, index: int) -> Sink:
        def put(event: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, event))

        return Sink(delta=put, done=put, fail=put)

    async def events(self) -> AsyncGenerator[tuple[int, Event], None]:
        """(index of the request, event), as they come, until all have ended. Raises what a request failed with."""
        while self._unfinished:
            index, event = await self._queue.get()
            if not isinstance(event, Delta):
                self._unfinished.discard(index)
            if isinstance(event, BaseException):
                raise event
            if isinstance(event, Completion):
                self._observe(event)
            yield index, event

    async def results(self) -> list[Any]:
        """The final results, in the order of the requests."""
        found: dict[int, Any] = {}
        async for index, event in self.events():
            if not isinstance(event, Delta):
                found[index] = event
        return [found[index] for index in range(len(self._requests))]


async def on_engine(engine: Engine, function: Callable[[], T], *, timeout: float = 10.0) -> T:
    """The result of a function that runs between two steps. Takes no thread; TimeoutError when the engine hangs."""
    return await asyncio.wait_for(asyncio.wrap_future(engine.call(function)), timeout)
