"""The HTTP application: routes of the generating calls, access and limits. What decides about tokens is elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from lmprog_runtime.server import native, status
from lmprog_runtime.server.access import Access
from lmprog_runtime.server.chat_completions import ChatCall
from lmprog_runtime.server.common import Reply
from lmprog_runtime.server.completions import CompletionCall
from lmprog_runtime.server.failures import add_handlers, error_answer
from lmprog_runtime.server.limits import BodyLimit
from lmprog_runtime.server.protocol import ChatRequest, CompletionRequest
from lmprog_runtime.server.request_ids import request_id_of
from lmprog_runtime.server.state import ServerState
from lmprog_runtime.server.streaming import as_events, while_connected

log = logging.getLogger("lmprog.requests")


class Call(Protocol):
    async def answer(self) -> Reply: ...
    def stream(self) -> AsyncIterator[dict[str, Any]]: ...


def create_app(state: ServerState) -> FastAPI:
    """The application over a loaded runtime. Every route but /health and /live needs the key, if there is one."""
    app = FastAPI(title="lmprog", version=status.version())
    access = Access(state.settings)

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        denial = access.denial(request.url.path, request.headers.get("authorization"))
        if denial is not None:
            return error_answer(401, denial, "authentication_error", code="invalid_api_key")
        started = time.monotonic()
        answer = await go_on(request)
        answer.headers["X-Request-Id"] = request_id_of(request)
        if state.settings.log_requests:
            seconds = time.monotonic() - started
            log.info(
                "%s %s %s %d %.3f s",
                request_id_of(request),
                request.method,
                request.url.path,
                answer.status_code,
                seconds,
            )
        return answer

    app.add_middleware(BodyLimit, most_bytes=int(state.settings.max_body_mb * 1e6))
    add_handlers(app)
    _add_generation(app, state)
    status.add_routes(app, state)
    return app


def _add_generation(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        state.check_model(body.model)
        return await _run(state, request, lambda: CompletionCall(state.session(request), body), stream=body.stream)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request, body: ChatRequest) -> Response:
        state.check_model(body.model)
        return await _run(state, request, lambda: ChatCall(state.session(request), body), stream=body.stream)

    @app.post("/generate", response_model=None)
    async def generate(request: Request, body: native.GenerateBody) -> Response:
        return await _run(state, request, lambda: native.GenerateCall(state.session(request), body), stream=body.stream)

    @app.post("/select", response_model=None)
    async def select(request: Request, body: native.SelectBody) -> Response:
        return await _once(state, request, lambda: native.select(state.session(request), body))

    @app.post("/fork", response_model=None)
    async def fork(request: Request, body: native.ForkBody) -> Response:
        return await _once(state, request, lambda: native.fork(state.session(request), body))


async def _run(state: ServerState, request: Request, make: Callable[[], Call], *, stream: bool) -> Response:
    """Answer at once or as server-sent events; the client's leaving ends the work either way."""
    if not stream:
        return await _once(state, request, lambda: _body(make()))
    refusal = state.refusal()
    if refusal is not None:
        return refusal
    events = as_events(make().stream())
    first = await anext(events)  # a mistake in the request is a status code, not an event in a stream
    return StreamingResponse(state.streamed(first, events), media_type="text/event-stream")


async def _body(call: Call) -> dict[str, Any]:
    return (await call.answer()).body


async def _once(
    state: ServerState, request: Request, work: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
) -> Response:
    refusal = state.refusal()
    if refusal is not None:
        return refusal
    with state.running_request():
        return JSONResponse(await while_connected(request, work()))
