"""Limits that hold before a request is parsed: the size of its body and the depth of its JSON. Plain ASGI."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_DEPTH = 64
_STRING = re.compile(rb'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class BodyLimit:
    """Reads the body, at most `most_bytes` of it, and hands it on whole; 413 or 400 in the error shape of OpenAI."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app, self._most = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD", "OPTIONS"}:
            await self._app(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            await _refuse(send, 413, f"The body is larger than {self._most} bytes; send less at once.")
        elif await _is_deep(body):
            await _refuse(send, 400, f"The body nests deeper than {MOST_DEPTH} levels.")
        else:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return b"".join(parts)
            part = message.get("body", b"")
            size += len(part)
            if size > self._most:
                return None
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, and after it whatever the client does (such as leaving)."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


async def _is_deep(body: bytes) -> bool:
    if body.count(b"[") + body.count(b"{") <= MOST_DEPTH:
        return False
    return await asyncio.to_thread(depth, body) > MOST_DEPTH


def depth(body: bytes) -> int:
    """Deepest nesting of brackets outside strings, in linear time and without recursion."""
    brackets = np.frombuffer(_STRING.sub(b"", body).translate(None, _NO_BRACKETS), np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1)).max(initial=0))


async def _refuse(send: Send, status: int, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "request_refused"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
