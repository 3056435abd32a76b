"""Starting and stopping: load the model, warm it, serve, and on SIGTERM finish what runs before going."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.errors import RuntimeFault
from lmprog_runtime.request import GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.access import check_settings
from lmprog_runtime.server.app import create_app
from lmprog_runtime.server.bridge import Runs, on_engine
from lmprog_runtime.server.failures import Unavailable
from lmprog_runtime.server.pace import busy_line, pace_between
from lmprog_runtime.server.settings import ServerSettings
from lmprog_runtime.server.state import ServerState

log = logging.getLogger("lmprog.server")

BUSY_LOG_SECONDS = 5.0
MOST_HEADER_BYTES = 64 * 1024


def serve(config: RuntimeConfig, settings: ServerSettings) -> None:
    """Load the model and serve until SIGINT or SIGTERM. ValueError for settings that would not be safe; OSError, before
    the model is loaded, when the address is taken or is not one of this machine."""
    check_settings(settings)
    set_up_logging(settings.log_format)
    sockets = bound_sockets(settings.host, settings.port)
    runtime = LocalRuntime.from_config(config)
    try:
        make_server(ServerState(runtime, settings)).run(sockets)
    finally:
        runtime.close()


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address of the host, bound and not listening yet: clients are refused until the server is there."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found.append(socket.socket(family, kind, protocol))
            found[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart need not wait for old clients
            if family == socket.AF_INET6:
                found[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found[-1].bind(address)
    except OSError as error:
        for each in found:
            each.close()
        taken = f"Port {port} of {host} is taken; stop what uses it, or choose another --port."
        refused = f"Cannot listen on {host}, port {port}: {error.strerror}."
        raise OSError(taken if error.errno == errno.EADDRINUSE else refused) from error
    return found


def make_server(state: ServerState) -> DrainingServer:
    """The HTTP server of a loaded runtime; `run()` serves until it is told to stop."""
    settings = state.settings
    app = create_app(state)
    app.router.lifespan_context = _lifespan(state)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="h11",  # has a limit on the size of headers
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    return DrainingServer(config, state)


class DrainingServer(uvicorn.Server):
    """On the first signal new requests are refused (503, and /health says so) while those in flight finish, for at most
    `drain_seconds`; then it stops. A second signal stops it at once."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._state.is_draining or self._loop is None:
            super().handle_exit(sig, frame)
            return
        self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Refuse new requests, finish those in flight, stop. Call it on the event loop."""
        self._state.is_draining = True
        self._drain = asyncio.ensure_future(self._finish())

    async def _finish(self) -> None:
        log.info("stopping: %d requests in flight", self._state.running)
        until = time.monotonic() + self._state.settings.drain_seconds
        while self._state.running and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if self._state.running:
            log.warning(
                "giving up on %d requests after %.0f s", self._state.running, self._state.settings.drain_seconds
            )
            self._state.stop_all()
        self.should_exit = True


def _lifespan(state: ServerState) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(warm_up(state)), asyncio.create_task(_look_after(state))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    return lifespan


async def warm_up(state: ServerState) -> None:
    """One short generation, so that the first user does not pay for lazily made things. Until then /health is 503."""
    started = time.monotonic()
    token = min(state.runtime.tokenizer.eos_ids, default=0)
    request = GenerateRequest([token], SamplingParams(max_tokens=2, ignore_eos=True), use_cache=False)
    try:
        async with Runs(state.runtime.engine, [request]) as runs:
            await runs.results()
    except RuntimeFault:
        log.exception("the model cannot generate; /health stays 503")
        return
    cache = state.runtime.engine.cache
    # not a flush: that would empty the tiers below, which may hold what was computed before, or by other servers
    await on_engine(state.runtime.engine, lambda: cache.evict(cache.tree.evictable))
    state.is_warm = True
    address = f"http://{state.settings.host}:{state.settings.port}"
    log.info("ready: %s on %s, warm after %.2f s", state.model_name, address, time.monotonic() - started)


async def _look_after(state: ServerState) -> None:
    """Every few seconds: let go of streams that were left, and tell log and metrics how fast the engine goes."""
    before: _Reading | None = None
    while True:
        state.streams.sweep()
        with contextlib.suppress(Unavailable):
            now = _Reading(await state.statistics(), time.monotonic())
            if before is not None:
                _tell(state, before, now)
            before = now if state.is_warm else None  # the warm-up is no work to speak of
        await asyncio.sleep(BUSY_LOG_SECONDS)


class _Reading(NamedTuple):
    numbers: dict[str, Any]  # of engine and cache
    at: float  # monotonic seconds


def _tell(state: ServerState, before: _Reading, now: _Reading) -> None:
    """The metrics always, the log only while there is work."""
    pace = pace_between(before.numbers, now.numbers, now.at - before.at)
    state.metrics.goes(pace)
    if now.numbers["steps"] > before.numbers["steps"]:
        log.info("%s", busy_line(now.numbers, pace))


class JsonLines(logging.Formatter):
    """One JSON object per line; `extra={"fields": {...}}` of a record become fields of their own."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(log_format: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if log_format == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
