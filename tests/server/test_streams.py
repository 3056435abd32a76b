"""Streams of programs over HTTP: their prefixes are held between two requests, within bounds, and let go at the end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from lmprog import RuntimeEndpoint, State, function, gen
from lmprog_runtime.server.streams import EndedStream, StreamBook
from tests.support.tiny_server import ASCII_ONLY, Served, eventually, serving

SAMPLING: Any = {"max_new_tokens": 8, "temperature": 0, "logit_bias": ASCII_ONLY}
PROMPT = "a prompt that a program goes on with"


def _leased(server: Served) -> int:
    return int(server.runtime.statistics()["leased_tokens"])


def _ask(server: Served, stream_id: str, text: str = PROMPT) -> dict[str, Any]:
    answer: dict[str, Any] = server.ok("/generate", text=text, stream_id=stream_id, sampling_params=SAMPLING)
    return answer


def test_a_stream_holds_its_tokens_until_it_is_closed(server: Served) -> None:
    """Not even a flush takes them; the close does, and tokens of a branch are marked as dead."""
    text = PROMPT + _ask(server, "s1")["text"]
    assert _leased(server) >= len(PROMPT)
    server.http.post("/flush_cache")
    assert _ask(server, "s1", text + " on")["meta_info"]["cached_tokens"] >= len(text) - 1
    closed = server.ok("/close_streams", streams=[{"stream_id": "s1", "dead_from": len(PROMPT)}, {"stream_id": "no"}])
    assert closed == {"closed": 1}
    assert _leased(server) == 0
    (space,) = server.http.get("/cache/tree").json()["namespaces"]
    assert [node["start"] >= len(PROMPT) for node in space["nodes"]] == [node["dead"] for node in space["nodes"]]
    server.comes_to_rest()


def test_a_score_holds_its_prompt(server: Served) -> None:
    server.ok("/select", text=PROMPT, choices=["yes", "no"], stream_id="s2")
    assert _leased(server) >= len(PROMPT) - 1
    assert server.ok("/close_streams", streams=[{"stream_id": "s2"}]) == {"closed": 1}
    assert _leased(server) == 0


def test_programs_hold_and_let_go(server: Served) -> None:
    seen = []

    @function
    def write(s: State) -> None:
        s += PROMPT + gen("first", max_tokens=4)
        s["first"]
        seen.append(_leased(server))
        with s.fork(3) as branches:
            for branch in branches:
                branch += " and" + gen("more", max_tokens=4)
            for branch in branches:
                branch["more"]
        s += gen("last", max_tokens=2, ignore_eos=True)

    with RuntimeEndpoint(server.url) as endpoint:
        run = write.run(backend=endpoint)
        run["last"]
        eventually(lambda: _leased(server) == 0)
    assert seen[0] >= len(PROMPT)
    assert len(server.state.streams) == 0


def test_streams_of_clients_that_vanish_are_let_go() -> None:
    """Too many, or idle for too long: the one unused the longest goes first."""
    released: list[object] = []

    class Engine:
        def lease(self) -> object:
            return object()

        def release(self, lease: object, *, dead_from: int | None = None) -> None:
            released.append(lease)

    now = 0.0
    book = StreamBook(Engine(), most=3, seconds=10, clock=lambda: now)  # type: ignore[arg-type]
    first, second = book.lease(None, "a"), book.lease(None, "b")
    assert book.lease("key", "a") is not first, "another key's stream of that name"
    now = 5.0
    assert book.lease(None, "a") is first
    assert released == []
    book.lease(None, "c")
    assert released == [second]
    now = 12.0
    book.sweep()
    assert (len(book), len(released)) == (2, 2)
    assert book.close(None, EndedStream(stream_id="a"))
    assert not book.close(None, EndedStream(stream_id="a"))
    assert not book.close(None, EndedStream(stream_id="b"))
    now = 16.0
    book.sweep()
    assert len(book) == 0
    assert len(released) == len(set(map(id, released))) == 4


def test_the_server_itself_sweeps(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as own:
        _ask(own, "left")
        assert _leased(own) > 0
        own.state.streams._seconds = -1.0
        eventually(lambda: _leased(own) == 0)


def test_mistakes(server: Served) -> None:
    assert "stream_id" in server.refused("/generate", text=["a", "b"], stream_id="x")
    assert "stream_id" in server.refused("/generate", text="a", stream_id="x", sampling_params={"n": 2})
    assert "stream_id" in server.refused("/generate", text="a", stream_id="../../x")
    assert "dead_from" in server.refused("/close_streams", streams=[{"stream_id": "x", "dead_from": -1}])


def test_streams_of_one_key_are_not_anothers() -> None:
    with serving(api_key="one,two", isolate_cache=True) as own:
        _ask(own, "mine")
        held = _leased(own)
        other = {"Authorization": "Bearer two"}
        body = {"streams": [{"stream_id": "mine"}]}
        assert httpx.post(f"{own.url}/close_streams", json=body, headers=other).json() == {"closed": 0}
        assert _leased(own) == held > 0
        assert own.ok("/close_streams", **body) == {"closed": 1}
