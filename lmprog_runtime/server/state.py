"""What the routes share: the runtime, the settings, the counters, who is being served. One per application."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import Request

from lmprog_runtime.errors import ModelNotFound
from lmprog_runtime.request import Completion
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.bridge import on_engine
from lmprog_runtime.server.failures import Overloaded, Unavailable
from lmprog_runtime.server.metrics import Metrics
from lmprog_runtime.server.request_ids import request_id_of
from lmprog_runtime.server.session import Session, tenant_of
from lmprog_runtime.server.settings import ServerSettings
from lmprog_runtime.server.streams import StreamBook


class ServerState:
    def __init__(self, runtime: LocalRuntime, settings: ServerSettings) -> None:
        self.runtime, self.settings = runtime, settings
        self.model_name = settings.served_model_name or runtime.config.model
        self.metrics = Metrics(self.model_name)
        self.streams = StreamBook(runtime.engine)
        engine = runtime.engine
        self.metrics.show(
            "grammar_compile_seconds", "Making a constraint ready, from the cache too", engine.compile_times
        )
        self.metrics.show("grammar_mask_seconds", "Masks of all constrained rows of a step", engine.mask_times)
        self.started = time.time()
        self.is_warm = False
        self.is_draining = False
        self._sessions: dict[int, Session] = {}  # being served, by identity: ids of requests need not differ

    # -- health and admission -------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Requests inside the routes that generate."""
        return len(self._sessions)

    def why_unhealthy(self) -> str | None:
        """None when requests can be served, else the reason in one sentence. Asks nothing of the engine's thread."""
        engine = self.runtime.engine
        if self.is_draining:
            return "The server is shutting down."
        if not engine.is_alive:
            return "The engine has failed; restart the server." if engine.failure else "The engine has stopped."
        started = engine.step_started
        if started is not None and (seconds := time.monotonic() - started) > self.settings.stall_seconds:
            return f"The model has been in one step for {seconds:.0f} s."
        return None if self.is_warm else "The model is still warming up."

    def enter(self, request: Request) -> Session:
        """Take a request in. Unavailable or Overloaded when that cannot be; `leave` when it has ended."""
        reason = self.why_unhealthy()
        if reason is not None:
            raise Unavailable(reason)
        if self.running >= self.settings.max_queue:
            raise Overloaded(f"The server has {self.running} requests already; try again soon.")
        session = self.session(request)
        self._sessions[id(session)] = session
        self.metrics.count("num_requests")
        return session

    def leave(self, session: Session, *, is_aborted: bool) -> None:
        self._sessions.pop(id(session), None)
        self.metrics.count("num_so_requests", session.constrained)
        self.metrics.ended(time.monotonic() - session.began, session.longest)
        if is_aborted:
            self.metrics.count("num_aborted_requests")

    def abort(self, request_id: str) -> int:
        """Stop the requests with this id; how many there were."""
        found = [session for session in self._sessions.values() if session.request_id == request_id]
        for session in found:
            session.stop.set()
        return len(found)

    def stop_all(self) -> None:
        """Stop every request, as /abort would."""
        for session in list(self._sessions.values()):
            session.stop.set()

    def session(self, request: Request) -> Session:
        """What this HTTP request may use. Kept beside it, for the log line at its end."""
        tenant = tenant_of(request.headers.get("authorization")) if self.settings.isolate_cache else None
        session = Session(self.runtime, self._finished, request_id_of(request.scope), self.streams, tenant)
        request.scope["state"]["session"] = session
        return session

    def _finished(self, session: Session, result: Completion) -> None:
        session.note(result)
        self.metrics.finished(result)

    def check_model(self, name: str) -> None:
        if name != self.model_name:
            raise ModelNotFound(f"This server has no model {name!r}; it serves {self.model_name!r}.")

    # -- statistics -----------------------------------------------------------------------------------------------

    async def statistics(self) -> dict[str, Any]:
        """Numbers of engine and cache, as /stats shows them. Unavailable when the engine does not answer."""
        try:
            return await on_engine(self.runtime.engine, self.runtime.read_statistics)
        except asyncio.TimeoutError:
            raise Unavailable("The engine does not answer; it is inside a long step.") from None

    async def refresh_metrics(self) -> None:
        """Take the engine's gauges and totals over into the metrics; an engine that hangs leaves them as they were."""
        try:
            numbers = await on_engine(self.runtime.engine, self.runtime.read_statistics, timeout=2.0)
        except asyncio.TimeoutError:
            return
        self.metrics.take(numbers)
