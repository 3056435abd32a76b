"""Limits that hold before a request is parsed: the size of its body and the depth of its JSON. Plain ASGI."""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_DEPTH = 64


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
        elif _depth(body) > MOST_DEPTH:
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


def _depth(body: bytes) -> int:
    """Deepest nesting of brackets outside strings; a scan without recursion, so that no body can overflow a stack."""
    deepest = depth = 0
    in_string = is_escaped = False
    for byte in body if body.count(b"[") + body.count(b"{") > MOST_DEPTH else b"":
        if in_string:
            in_string = is_escaped or byte != 0x22
            is_escaped = not is_escaped and byte == 0x5C
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


async def _refuse(send: Send, status: int, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "request_refused"}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
