"""What happens around every request: its id, the key check, its log line and its trace. Plain ASGI, so that streams
are timed to their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmprog_runtime.server.access import Access
from lmprog_runtime.server.failures import answer_for, error_answer
from lmprog_runtime.server.request_ids import request_id_of
from lmprog_runtime.server.session import Session

log = logging.getLogger("lmprog.requests")


class Finished(NamedTuple):
    """A request that has ended, for the log and the trace. Sizes and times, never prompts."""

    request_id: str
    method: str
    path: str
    status: int
    seconds: float
    usage: dict[str, int]
    marks: Sequence[tuple[str, float]] = ()  # what happened inside, in seconds since its arrival
    traceparent: str = ""  # of the caller's trace (W3C Trace Context), if it has one


Watcher = Callable[[Finished], None]


class Guard:
    def __init__(self, app: ASGIApp, access: Access, watchers: list[Watcher]) -> None:
        self._app, self._access, self._watchers = app, access, watchers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, sent = time.monotonic(), _Sent(send, request_id_of(scope))
        denial = self._access.denial(scope["path"], Headers(scope=scope))
        try:
            if denial is not None:
                kind = "authentication_error" if denial.status == 401 else "permission_error"
                answer = error_answer(denial.status, denial.message, kind, code=denial.code)
                await answer(scope, receive, sent)
            else:
                await self._app(scope, receive, sent)
        except Exception as error:
            if sent.status:
                raise
            await answer_for(error)(scope, receive, sent)
        finally:
            done = _finished(scope, sent, started)
            for watcher in self._watchers:
                watcher(done)


def _finished(scope: Scope, sent: _Sent, started: float) -> Finished:
    session: Session | None = scope["state"].get("session")
    usage = session.usage if session is not None else {}
    marks = [(name, at - started) for name, at in session.marks] if session is not None else []
    seconds = time.monotonic() - started
    parent = Headers(scope=scope).get("traceparent", "")
    return Finished(sent.request_id, scope["method"], scope["path"], sent.status, seconds, usage, marks, parent)


class _Sent:
    """Notes the status and adds the request's id to the answer."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send, self.request_id, self.status = send, request_id, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self.request_id
        await self._send(message)


def log_request(done: Finished) -> None:
    """One line per request; with `--log-format json` each number is a field of its own."""
    fields: dict[str, Any] = {**done._asdict(), **done.usage}
    for name in ("usage", "marks", "traceparent"):
        del fields[name]
    tokens = "".join(f" {name.removesuffix('_tokens')}={value}" for name, value in done.usage.items())
    line = f"{done.request_id} {done.method} {done.path} {done.status} {done.seconds:.3f} s{tokens}"
    log.info("%s", line, extra={"fields": fields})
