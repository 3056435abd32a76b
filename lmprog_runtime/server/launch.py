"""Starting and stopping: load the model, warm it, serve, and on SIGTERM finish what runs before going."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.request import GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.access import check_settings
from lmprog_runtime.server.app import create_app
from lmprog_runtime.server.bridge import Runs
from lmprog_runtime.server.settings import ServerSettings
from lmprog_runtime.server.state import ServerState

log = logging.getLogger("lmprog.server")

BUSY_LOG_SECONDS = 5.0


def serve(config: RuntimeConfig, settings: ServerSettings) -> None:
    """Load the model and serve until SIGINT or SIGTERM. ValueError for settings that would not be safe."""
    check_settings(settings)
    _set_up_logging(settings)
    runtime = LocalRuntime.from_config(config)
    state = ServerState(runtime, settings)
    app = create_app(state)
    app.router.lifespan_context = _lifespan(state)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=int(settings.drain_seconds),
            h11_max_incomplete_event_size=64 * 1024,
        )
    )
    try:
        server.run()
    finally:
        runtime.close()


def _lifespan(state: ServerState) -> Callable[[FastAPI], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await _warm_up(state)
        reporter = asyncio.create_task(_report_while_busy(state))
        try:
            yield
        finally:
            state.is_draining = True
            reporter.cancel()

    return lifespan


async def _warm_up(state: ServerState) -> None:
    """One short generation, so that the first user does not pay for lazily made things."""
    started = time.monotonic()
    token = min(state.runtime.tokenizer.eos_ids, default=0)
    request = GenerateRequest([token], SamplingParams(max_tokens=2, ignore_eos=True), use_cache=False)
    async with Runs(state.runtime.engine, [request]) as runs:
        await runs.results()
    await asyncio.to_thread(state.runtime.flush_cache)
    state.is_warm = True
    address = f"http://{state.settings.host}:{state.settings.port}"
    log.info("ready: %s on %s, warm after %.2f s", state.model_name, address, time.monotonic() - started)


async def _report_while_busy(state: ServerState) -> None:
    """A line every few seconds while there is work; silence when idle."""
    before = await state.statistics()
    while True:
        await asyncio.sleep(BUSY_LOG_SECONDS)
        now = await state.statistics()
        if now["steps"] > before["steps"]:
            log.info("%s", _busy_line(before, now))
        before = now


def _busy_line(before: dict[str, Any], now: dict[str, Any]) -> str:
    cache, old = now["radix_cache"], before["radix_cache"]
    queried = cache["queried_tokens"] - old["queried_tokens"]
    hits = cache["hit_tokens"] - old["hit_tokens"]
    rate = f"{hits / queried:.0%}" if queried else "-"
    computed = (now["computed_tokens"] - before["computed_tokens"]) / BUSY_LOG_SECONDS
    generated = (now["generated_tokens"] - before["generated_tokens"]) / BUSY_LOG_SECONDS
    return (
        f"running {now['running']}, waiting {now['waiting']}, computed {computed:.0f} tok/s, "
        f"generated {generated:.0f} tok/s, pool {cache['used_slots'] / cache['total_slots']:.0%}, hit rate {rate}"
    )


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _set_up_logging(settings: ServerSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else plain)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
