"""The HTTP application: routes of the generating calls, access and limits. What decides about tokens is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from lmprog_runtime.server import native, page, status, tracing
from lmprog_runtime.server.access import Access
from lmprog_runtime.server.chat_completions import ChatCall
from lmprog_runtime.server.completions import CompletionCall
from lmprog_runtime.server.failures import Answer, ClientGone, Stopped, add_handlers
from lmprog_runtime.server.guard import Guard, Watcher, log_request
from lmprog_runtime.server.limits import BodyLimit
from lmprog_runtime.server.protocol import ChatRequest, CompletionRequest
from lmprog_runtime.server.responses import ResponseCall
from lmprog_runtime.server.responses_protocol import ResponsesRequest
from lmprog_runtime.server.session import Session
from lmprog_runtime.server.state import ServerState
from lmprog_runtime.server.streaming import Call, EventStream, while_wanted


def create_app(state: ServerState) -> FastAPI:
    """The application over a loaded runtime. Every route but those of access.OPEN_ROUTES needs the key, if any."""
    app = FastAPI(
        title="lmprog", version=status.version(), docs_url=None, redoc_url=None, default_response_class=Answer
    )
    watchers: list[Watcher] = [log_request] if state.settings.log_requests else []
    if state.settings.otlp_endpoint:
        watchers.append(tracing.exporter(state.settings.otlp_endpoint, state.model_name))
    app.add_middleware(BodyLimit, most_bytes=int(state.settings.max_body_mb * 1e6))
    app.add_middleware(Guard, access=Access(state.settings), watchers=watchers)
    add_handlers(app)
    _add_openai(app, state)
    _add_native(app, state)
    status.add_routes(app, state)
    page.add_routes(app)
    return app


def _add_openai(app: FastAPI, state: ServerState) -> None:
    @app.post("/v1/completions", response_model=None)
    async def completions(request: Request, body: CompletionRequest) -> Response:
        state.check_model(body.model)
        return await _run(state, request, lambda session: CompletionCall(session, body), stream=body.stream)

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request, body: ChatRequest) -> Response:
        state.check_model(body.model)
        return await _run(state, request, lambda session: ChatCall(session, body), stream=body.stream)

    @app.post("/v1/responses", response_model=None)
    async def responses(request: Request, body: ResponsesRequest) -> Response:
        state.check_model(body.model)
        make: Callable[[Session], Call] = lambda session: ResponseCall(session, body)  # noqa: E731
        return await _run(state, request, make, stream=body.stream, mark_end=False)


def _add_native(app: FastAPI, state: ServerState) -> None:
    @app.post("/generate", response_model=None)
    async def generate(request: Request, body: native.GenerateBody) -> Response:
        return await _run(state, request, lambda session: native.GenerateCall(session, body), stream=body.stream)

    @app.post("/select", response_model=None)
    async def select(request: Request, body: native.SelectBody) -> Response:
        return await _once(state, request, lambda session: native.select(session, body))

    @app.post("/fork", response_model=None)
    async def fork(request: Request, body: native.ForkBody) -> Response:
        state.metrics.count("num_forks", len(body.suffixes))
        return await _once(state, request, lambda session: native.fork(session, body))


async def _run(
    state: ServerState, request: Request, make: Callable[[Session], Call], *, stream: bool, mark_end: bool = True
) -> Response:
    """Answer at once or as server-sent events; the client's leaving ends the work either way."""
    if not stream:
        return await _once(state, request, lambda session: make(session).answer())
    session = state.enter(request)
    try:
        events = EventStream(make(session).stream(), session.stop, mark_end)
        await events.begin(request.receive)
    except BaseException as error:
        state.leave(session, is_aborted=isinstance(error, (ClientGone, Stopped)))
        raise
    events.on_end.append(lambda error: state.leave(session, is_aborted=error is not None))
    return _Streamed(events)


class _Streamed(Response):
    """Lets FastAPI hand an EventStream on."""

    def __init__(self, events: EventStream) -> None:
        super().__init__(media_type="text/event-stream")
        self._events = events

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        await self._events.send_to(receive, send)


async def _once(
    state: ServerState, request: Request, work: Callable[[Session], Coroutine[Any, Any, dict[str, Any] | list[Any]]]
) -> Response:
    session = state.enter(request)
    is_aborted = False
    try:
        return Answer(await while_wanted(work(session), request.receive, session.stop))
    except (ClientGone, Stopped):
        is_aborted = True
        raise
    finally:
        state.leave(session, is_aborted=is_aborted)
