"""What the routes share: the runtime, the settings, the counters. One per application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from lmprog_runtime.errors import ModelNotFound
from lmprog_runtime.params import check_token_ids
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.failures import answer_for, error_answer
from lmprog_runtime.server.metrics import Metrics
from lmprog_runtime.server.request_ids import request_id_of
from lmprog_runtime.server.session import Session, tenant_of
from lmprog_runtime.server.settings import ServerSettings
from lmprog_runtime.server.streaming import event


class ServerState:
    def __init__(self, runtime: LocalRuntime, settings: ServerSettings) -> None:
        self.runtime, self.settings = runtime, settings
        self.model_name = settings.served_model_name or runtime.config.model
        self.metrics = Metrics(self.model_name)
        self.started = time.time()
        self.is_warm = False
        self.is_draining = False
        self.running = 0  # requests inside the routes that generate

    # -- health and admission -------------------------------------------------------------------------------------

    def why_unhealthy(self) -> str | None:
        """None when requests can be served, else the reason in one sentence."""
        if self.is_draining:
            return "The server is shutting down."
        if not self.runtime.engine.is_alive:
            return "The engine has stopped."
        if not self.is_warm:
            return "The model is still warming up."
        return None

    def refusal(self) -> JSONResponse | None:
        """Why a new request cannot be taken now, as an answer; None when it can."""
        reason = self.why_unhealthy()
        if reason is not None:
            return error_answer(503, reason, "server_error", code="unavailable")
        if self.running >= self.settings.max_queue:
            answer = error_answer(
                429, f"The server has {self.running} requests already; try again soon.", "rate_limit_error"
            )
            answer.headers["Retry-After"] = "1"
            return answer
        return None

    def check_model(self, name: str) -> None:
        if name != self.model_name:
            raise ModelNotFound(f"This server has no model {name!r}; it serves {self.model_name!r}.")

    def check_ids(self, name: str, ids: list[int]) -> None:
        check_token_ids(name, tuple(ids), self.runtime.executor.vocab_size)

    def session(self, request: Request) -> Session:
        """What this HTTP request may use."""
        tenant = tenant_of(request.headers.get("authorization")) if self.settings.isolate_cache else None
        return Session(self.runtime, self.metrics.finished, request_id_of(request), tenant)

    @contextmanager
    def running_request(self) -> Iterator[None]:
        self.running += 1
        self.metrics.count("num_requests")
        try:
            yield
        finally:
            self.running -= 1

    async def streamed(self, first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
        """Events of a running stream. An error after the first event becomes an event too: the status line is gone."""
        with self.running_request():
            yield first
            try:
                async for item in rest:
                    yield item
            except (asyncio.CancelledError, GeneratorExit):
                self.metrics.count("num_aborted_requests")
                raise
            except Exception as error:
                yield event(_body_of(answer_for(error)))

    # -- statistics -----------------------------------------------------------------------------------------------

    async def statistics(self) -> dict[str, Any]:
        """Numbers of engine and cache, as /stats shows them."""
        return await asyncio.to_thread(self.runtime.statistics)

    async def refresh_metrics(self) -> None:
        """Take the engine's gauges and totals over into the metrics; a dead engine leaves them as they were."""
        if not self.runtime.engine.is_alive:
            return
        numbers = await self.statistics()
        cache = numbers["radix_cache"]
        usage = cache["used_slots"] / cache["total_slots"]
        gauges = {
            "num_requests_running": numbers["running"],
            "num_requests_waiting": numbers["waiting"],
            "kv_cache_usage_perc": usage,
            "token_usage": usage,
        }
        totals = {
            "prefix_cache_queries": cache["queried_tokens"],
            "prefix_cache_hits": cache["hit_tokens"],
            "evicted_tokens": cache["evicted_tokens"],
            "failed_steps": numbers["failed_steps"],
        }
        self.metrics.update(gauges, totals)


def _body_of(answer: JSONResponse) -> dict[str, Any]:
    import json

    body: dict[str, Any] = json.loads(bytes(answer.body))
    return body
