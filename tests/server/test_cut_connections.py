"""A connection that is cut after a call was sent: the call is made again, and the program sees one answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lmprog import RuntimeEndpoint, State, function, gen
from lmprog.errors import BackendUnavailable
from tests.support.tiny_server import Served, eventually

BIAS = dict.fromkeys([*range(3 + 32), *range(3 + 127, 3 + 256)], -100.0)


class _Cutter:
    """Hands bytes on between a client and a server. The first `cuts` connections that carry a generation are closed
    when the server has taken it, before it has answered."""

    def __init__(self, server: Served, cuts: int) -> None:
        self._server, self._cuts, self.was_cut = server, cuts, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", int(self._server.url.rsplit(":", 1)[1])))
                threading.Thread(target=self._hand_on, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._hand_on, args=(server, client, False), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):  # cut, or at its end
            while data := source.recv(65536):
                target.sendall(data)
                if is_request and b"POST /generate" in data and self._cuts > 0:
                    self._cuts -= 1
                    threading.Thread(target=self._cut, args=(source, target), daemon=True).start()
        _close(source, target)

    def _cut(self, *ends: socket.socket) -> None:
        before = self._aborted()
        eventually(lambda: self._server.state.running == 1, 30)
        _close(*ends)
        eventually(lambda: self._aborted() == before + 1, 30)
        self.was_cut.set()

    def _aborted(self) -> float:
        """Without asking the engine, which waits for the cut."""
        registry, labels = self._server.state.metrics.registry, {"model_name": "tiny"}
        return registry.get_sample_value("lmprog:num_aborted_requests_total", labels) or 0.0

    def close(self) -> None:
        _close(self._listener)


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextlib.contextmanager
def _cutting(server: Served, cuts: int) -> Iterator[_Cutter]:
    """The model waits for the cut, so that no answer comes before it."""
    executor = server.runtime.executor
    step = executor.step
    cutter = _Cutter(server, cuts)
    executor.step = lambda batch: (cutter.was_cut.wait(60), step(batch))[1]  # type: ignore[method-assign]
    try:
        yield cutter
    finally:
        cutter.was_cut.set()
        executor.step = step  # type: ignore[method-assign]
        cutter.close()


@function
def program(s: State) -> None:
    s += "abc" + gen("x", max_tokens=12, temperature=1.0, seed=5, logit_bias=BIAS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_is_made_again_and_seen_once(server: Served, stream: bool) -> None:
    with RuntimeEndpoint(server.url) as endpoint:
        expected = program.run(backend=endpoint)
    names = ("num_requests_total", "num_aborted_requests_total", "request_success_total", "generation_tokens_total")
    before = {name: server.metric(name) for name in names}
    with _cutting(server, cuts=1) as cutter, RuntimeEndpoint(cutter.url) as endpoint:
        state = program.run(backend=endpoint, stream=stream)
        pieces = "".join(state.text_iter("x")) if stream else state["x"]
        assert state["x"] == pieces == expected["x"]
        assert state.text() == expected.text()
    server.comes_to_rest()
    more = {name: server.metric(name) - before[name] for name in names}
    assert more["num_requests_total"] == 2, "it came twice"
    assert more["num_aborted_requests_total"] == 1, "and the first was ended"
    assert (more["request_success_total"], more["generation_tokens_total"]) == (1, 12), "one was done"


def test_both_tries_have_the_same_request_id(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    enter = server.state.enter

    def noting(request: Any) -> Any:
        session = enter(request)
        seen.append(session.request_id)
        return session

    monkeypatch.setattr(server.state, "enter", noting)
    with _cutting(server, cuts=1) as cutter, RuntimeEndpoint(cutter.url) as endpoint:
        program.run(backend=endpoint).text()
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_cut_off_every_time_it_is_an_error_of_one_sentence(server: Served) -> None:
    is_told = pytest.raises(BackendUnavailable, match="cannot be reached")
    with _cutting(server, cuts=1) as cutter, RuntimeEndpoint(cutter.url, retries=0) as endpoint, is_told:
        program.run(backend=endpoint).text()
    server.comes_to_rest()
