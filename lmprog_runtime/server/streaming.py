"""Server-sent events, and ending work when its client has gone or somebody stopped it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Send

from lmprog_runtime.server.failures import ClientGone, Stopped, answer_for

T = TypeVar("T")
DONE = "data: [DONE]\n\n"


class Call(Protocol):
    """One request to a generating route: how its answer is put together, at once or piece by piece."""

    async def answer(self) -> dict[str, Any] | list[Any]: ...
    def stream(self) -> AsyncGenerator[dict[str, Any], None]: ...


async def while_wanted(work: Coroutine[Any, Any, T], receive: Receive, stop: asyncio.Event) -> T:
    """The result of `work`; cancels it and raises ClientGone or Stopped as soon as nobody wants it any more."""
    task = asyncio.ensure_future(work)
    gone, stopped = asyncio.ensure_future(_disconnected(receive)), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, gone, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if stopped.done():
            raise Stopped("The request was stopped by /abort.")
        raise ClientGone("The client closed the connection.")
    finally:
        await _end(task, gone, stopped)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: dict[str, Any]) -> str:
    """One event. Those of the Responses API carry their type as the event's name too."""
    name = f"event: {data['type']}\n" if isinstance(data.get("type"), str) else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


class EventStream:
    """An ASGI answer made of events. `begin` waits for the first one, so that a mistake in the request is a status code
    and not an event in a stream; an error after that becomes an event, since the status line is gone."""

    def __init__(self, chunks: AsyncGenerator[dict[str, Any], None], stop: asyncio.Event, mark_end: bool) -> None:
        self._chunks, self._stop, self._end = chunks, stop, DONE if mark_end else ""
        self._first: dict[str, Any] | None = None
        self.on_end: list[Callable[[BaseException | None], None]] = []
        self.headers: dict[str, str] = {}

    async def begin(self, receive: Receive) -> None:
        try:
            self._first = await while_wanted(_next(self._chunks), receive, self._stop)
        except BaseException:
            await self._chunks.aclose()
            raise

    async def send_to(self, receive: Receive, send: Send) -> None:
        """Send everything. However that ends, the generation has ended with it and `on_end` was called."""
        error: BaseException | None = None
        headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", **self.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            await while_wanted(self._pump(send), receive, self._stop)
        except ClientGone as gone:
            error = gone
        except Stopped as stopped:
            error = stopped
            await self._finish(send, event(_body(stopped)))
        except BaseException as other:
            error = other
            raise
        finally:
            await self._chunks.aclose()
            for callback in self.on_end:
                callback(error)

    async def _pump(self, send: Send) -> None:
        last = self._end
        try:
            if self._first is not None:
                await _send(send, event(self._first))
                async for chunk in self._chunks:
                    await _send(send, event(chunk))
        except Exception as error:
            last = event(_body(error)) + self._end
        await self._finish(send, last)

    async def _finish(self, send: Send, text: str) -> None:
        with contextlib.suppress(OSError):  # the client may have left by now
            await send({"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": False})


async def _next(chunks: AsyncIterator[dict[str, Any]]) -> dict[str, Any] | None:
    return await anext(chunks, None)


def _send(send: Send, text: str) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": True})


def _body(error: BaseException) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes(answer_for(error).body))
    return body
