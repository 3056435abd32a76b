"""A05, A06: clients that go away, models that crash or hang, and shutting down. Nothing leaks, nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.tiny_server import ASCII_ONLY, CONTEXT, Served, eventually, serving, tiny_runtime

LONG: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": CONTEXT - 100, "logit_bias": ASCII_ONLY}


MOST_STEPS = 10
"""Steps that the model may still do for a client that has left."""


class _Steps:
    """The model's step, which from step `stop_at` on waits for the server to notice that its client has left: for so
    long that a server which never notices is seen to go on, and not at all once it has noticed."""

    def __init__(self, step: Any, stop_at: int) -> None:
        self._step, self._stop_at = step, stop_at
        self.count, self.is_reached, self.is_noticed = 0, threading.Event(), threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.count += 1
        if self._stop_at <= self.count <= self._stop_at + MOST_STEPS:
            self.is_reached.set()
            self.is_noticed.wait(3.0)
        return self._step(batch)


@contextlib.contextmanager
def _steps(server: Served, stop_at: int) -> Iterator[_Steps]:
    executor = server.runtime.executor
    step = executor.step
    executor.step = steps = _Steps(step, stop_at)  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        executor.step = step  # type: ignore[method-assign]


def _send(server: Served, body: dict[str, Any]) -> socket.socket:
    """A request on its way, whose client leaves when the socket is closed."""
    data, port = json.dumps(body).encode(), int(server.url.rsplit(":", 1)[1])
    lines = ["POST /v1/completions HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)
    return client


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop_at", [1, 7], ids=["before-the-first-token", "in-the-middle"])
def test_case_a05_leaving_ends_the_work_within_a_few_steps(server: Served, stop_at: int, stream: bool, n: int) -> None:
    before = server.metric("num_aborted_requests_total")
    with _steps(server, stop_at) as steps:
        client = _send(server, {**LONG, "stream": stream, "n": n})
        assert steps.is_reached.wait(30)
        client.close()
        eventually(lambda: server.state.running == 0, 60)
        steps.is_noticed.set()
        server.comes_to_rest(30)
        assert steps.count <= stop_at + MOST_STEPS
    assert server.metric("num_aborted_requests_total") == before + 1


@pytest.mark.parametrize("stream", [False, True])
def test_case_a05_leaving_while_a_constraint_compiles(server: Served, stream: bool) -> None:
    is_compiling, go_on, is_compiled = threading.Event(), threading.Event(), threading.Event()
    engine = server.runtime.engine
    compiler, before = engine._compiler, server.metric("num_aborted_requests_total")

    def slow(constraint: Any, prefix: bytes) -> Any:
        is_compiling.set()
        go_on.wait(60)
        is_compiled.set()
        return compiler(constraint, prefix)

    engine._compiler = slow
    try:
        client = _send(server, {**LONG, "regex": "[a-z]+", "stream": stream})
        assert is_compiling.wait(30)
        client.close()
        eventually(lambda: server.state.running == 0, 30)
    finally:
        engine._compiler = compiler
        go_on.set()
    assert is_compiled.wait(30)
    assert server.metric("num_aborted_requests_total") == before + 1
    steps = server.runtime.statistics()["steps"]
    server.ok("/v1/completions", **{**LONG, "max_tokens": 1})
    server.comes_to_rest()
    assert server.runtime.statistics()["steps"] == steps + 1, "what nobody waits for is not started after all"


def test_stopping_by_request_id(server: Served) -> None:
    found: dict[str, Any] = {}

    def ask(stream: bool) -> None:
        body = {**LONG, "stream": stream}
        answer = httpx.post(
            f"{server.url}/v1/completions", json=body, headers={"X-Request-Id": f"me-{stream}"}, timeout=60
        )
        found[str(stream)] = answer

    for stream in (False, True):
        thread = threading.Thread(target=ask, args=(stream,))
        thread.start()
        eventually(lambda: server.state.running == 1)
        if stream:
            eventually(lambda: server.runtime.statistics()["running"] == 1)
            time.sleep(0.1)
        assert server.ok("/abort", rid=f"me-{stream}") == {"aborted": 1}
        thread.join(10)
    assert found["False"].status_code == 499
    assert found["False"].headers["x-request-id"] == "me-False"
    error = json.loads(found["True"].text.strip().splitlines()[-1].removeprefix("data: "))
    assert error["error"]["code"] == "request_aborted"
    assert "No request" in server.refused("/abort", 404, rid="nobody")
    server.comes_to_rest()


def test_case_a06_a_crashed_step_is_an_error_for_its_requests_only() -> None:
    with serving() as server:
        executor = server.runtime.executor
        step, calls = executor.step, [0]

        def crash_once(batch: Any) -> Any:
            calls[0] += 1
            if calls[0] == 3:
                raise FloatingPointError("boom")
            return step(batch)

        executor.step = crash_once  # type: ignore[method-assign]
        answer = server.post("/v1/completions", **{**LONG, "max_tokens": 20})
        assert answer.status_code == 500
        assert "boom" in answer.json()["error"]["message"]
        assert server.http.get("/health").status_code == 200
        assert server.ok("/v1/completions", **{**LONG, "max_tokens": 5})
        calls[0] = 0
        events = server.events("/v1/completions", **{**LONG, "max_tokens": 20})
        assert "boom" in events[-2]["error"]["message"]
        assert server.metric("failed_steps_total") == 2
        server.comes_to_rest()


def test_case_r04_slots_that_do_not_add_up_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    """R04: where nothing is checked after each step, a violation is a number and one line of the log, and no crash."""
    with serving() as server:
        server.ok("/v1/completions", **{**LONG, "max_tokens": 3})
        assert server.metric("cache_violations_total") == 0
        engine = server.runtime.engine
        engine.call(lambda: setattr(engine.cache, "held", engine.cache.held + 1)).result()
        steps = engine.steps
        server.ok("/v1/completions", **{**LONG, "max_tokens": 3})
        assert server.metric("cache_violations_total") == engine.steps - steps > 0
    assert [record.levelname for record in caplog.records if "do not add up" in record.message] == ["ERROR"]


def test_case_a06_a_dead_engine_is_told_at_once() -> None:
    """The scheduler itself fails: what runs gets its error, /health says so without a key, new requests are refused."""
    with serving(api_key="k") as server:
        scheduler = server.runtime.engine.scheduler
        scheduler.complete = lambda step: 1 / 0  # type: ignore[method-assign]
        answer = server.post("/v1/completions", **LONG)
        assert answer.status_code == 500
        assert "ZeroDivisionError" in answer.json()["error"]["message"]
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503
        assert "failed" in health.json()["reason"]
        started = time.monotonic()
        assert server.post("/v1/completions", **LONG).status_code == 503
        assert time.monotonic() - started < 20
        assert httpx.get(f"{server.url}/live").status_code == 200


def test_case_a06_a_model_that_hangs_is_told_too() -> None:
    with serving(stall_seconds=0.2) as server:
        go_on = threading.Event()
        executor = server.runtime.executor
        step = executor.step
        executor.step = lambda batch: (go_on.wait(20), step(batch))[1]  # type: ignore[method-assign]
        thread = threading.Thread(target=server.post, args=("/v1/completions",), kwargs={**LONG, "max_tokens": 1})
        thread.start()
        eventually(lambda: server.http.get("/health").status_code == 503)
        assert "one step" in server.http.get("/health").json()["reason"]
        assert server.http.get("/metrics").status_code == 200, "scraping never hangs with it"
        assert server.post("/v1/completions", **LONG).status_code == 503
        go_on.set()
        thread.join(10)
        eventually(lambda: server.http.get("/health").status_code == 200)


def test_case_a06_not_healthy_before_it_is_warm() -> None:
    with serving() as server:
        server.state.is_warm = False
        answer = server.http.get("/health")
        assert (answer.status_code, "warming" in answer.json()["reason"]) == (503, True)
        assert server.post("/v1/completions", **LONG).headers["retry-after"] == "1"


def test_a_full_queue_answers_429_with_retry_after() -> None:
    with serving(max_queue=2) as server:
        threads = [threading.Thread(target=server.post, args=("/v1/completions",), kwargs=LONG) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: server.state.running == 2)
        answer = server.post("/v1/completions", **LONG)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        server.state.stop_all()
        for thread in threads:
            thread.join(10)
        assert server.ok("/v1/completions", **{**LONG, "max_tokens": 1})


@pytest.mark.parametrize("patience", [30.0, 0.3])
def test_draining_finishes_what_runs_and_refuses_what_is_new(patience: float) -> None:
    """SIGTERM: in flight is finished, unless that takes longer than the patience; then it is told."""
    runtime = tiny_runtime()
    with serving(runtime, drain_seconds=patience) as server:
        found: list[httpx.Response] = []
        body = {**LONG, "max_tokens": 300 if patience > 1 else 3900}
        url = f"{server.url}/v1/completions"
        thread = threading.Thread(target=lambda: found.append(httpx.post(url, json=body, timeout=60)))
        thread.start()
        eventually(lambda: server.state.running == 1)
        drain = server.server.drain  # what the signal's handler calls on the event loop
        server.server._loop.call_soon_threadsafe(drain)
        eventually(lambda: server.state.is_draining)
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert httpx.post(url, json=body).status_code == 503
        thread.join(30)
        assert found[0].status_code == (200 if patience > 1 else 499)
        eventually(lambda: server.server.should_exit)


def test_many_clients_that_leave_at_random_moments(server: Served) -> None:
    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {**LONG, "stream": number % 2 == 0, "n": 1 + number % 3, "max_tokens": 400}
        with contextlib.suppress(asyncio.TimeoutError, TimeoutError, httpx.HTTPError):
            await asyncio.wait_for(client.post("/v1/completions", json=body), 0.02 * (number % 17))

    async def everyone() -> None:
        async with httpx.AsyncClient(base_url=server.url, limits=httpx.Limits(max_connections=60)) as client:
            await asyncio.gather(*(one(client, number) for number in range(60)))

    asyncio.run(everyone())
    server.comes_to_rest(30)
