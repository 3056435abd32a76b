"""Server-sent events, and ending work when the client has gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it and raises ClientGone as soon as the client disconnects."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        raise ClientGone
    finally:
        task.cancel()
        watcher.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"


async def as_events(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Chunks as events, and the mark of OpenAI's streams that all have come."""
    async for chunk in chunks:
        yield event(chunk)
    yield DONE
