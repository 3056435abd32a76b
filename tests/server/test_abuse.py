"""Clients that mean no good, or are broken: whatever they send, the next request is fine and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest

from tests.support.tiny_server import ASCII_ONLY, Served, eventually, serving

LONG: Any = {"model": "tiny", "prompt": "abc", "max_tokens": 3000, "stream": True, "logit_bias": ASCII_ONLY}
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


def _raw(server: Served, content: bytes | str, path: str = "/v1/completions") -> httpx.Response:
    return server.http.post(path, content=content, headers={"content-type": "application/json"})


def _address(server: Served) -> tuple[str, int]:
    return "127.0.0.1", int(server.url.rsplit(":", 1)[1])


def _is_fine(server: Served) -> None:
    assert server.ok("/v1/completions", model="tiny", prompt="abc", max_tokens=1)
    server.comes_to_rest(30)


def test_a_client_that_is_killed_in_the_middle_of_a_stream(server: Served) -> None:
    code = """
import httpx, json, sys
with httpx.stream("POST", sys.argv[1], json=json.loads(sys.argv[2]), timeout=60) as answer:
    for line in answer.iter_lines():
        print(line, flush=True)
"""
    command = [sys.executable, "-c", code, f"{server.url}/v1/completions", json.dumps(LONG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline().startswith("data:")
        client.send_signal(signal.SIGKILL)
    _is_fine(server)


def _head(server: Served, body: bytes, *more: str) -> bytes:
    lines = ["POST /v1/completions HTTP/1.1", f"Host: 127.0.0.1:{_address(server)[1]}", *more]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def test_a_reader_that_reads_nothing_holds_up_nobody(server: Served) -> None:
    """The stream fills the buffers of its socket; others are served, and its work ends when it goes."""
    body = {**LONG, "n": 16, "logprobs": 5}
    with socket.create_connection(_address(server)) as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.sendall(_head(server, json.dumps(body).encode()))
        eventually(lambda: server.state.running == 1)
        assert server.ok("/v1/completions", model="tiny", prompt="abc", max_tokens=2)
    _is_fine(server)


def test_half_a_request_holds_up_nobody(server: Served) -> None:
    whole = _head(server, json.dumps({**LONG, "stream": False}).encode())
    halves = []
    for cut in (1, 20, len(whole) - 5):
        half = socket.create_connection(_address(server))
        half.sendall(whole[:cut])
        halves.append(half)
    _is_fine(server)
    for half in halves:
        half.close()
    _is_fine(server)


@pytest.mark.parametrize("lines", [["X-Big: " + "a" * 200_000], [f"X-{n}: {'a' * 100}" for n in range(3000)]])
def test_giant_headers_are_refused(server: Served, lines: list[str]) -> None:
    with socket.create_connection(_address(server)) as client:
        client.settimeout(20)
        try:
            client.sendall(_head(server, b"{}", *lines))
            answer = client.recv(4096)
        except ConnectionError:  # it may hang up while we still send
            answer = b""
        assert answer == b"" or b" 400 " in answer or b" 431 " in answer
    _is_fine(server)


@pytest.mark.parametrize("length", ["-1", "99999999999999999999", "abc", "5, 6"])
def test_lengths_that_are_none(server: Served, length: str) -> None:
    with socket.create_connection(_address(server)) as client:
        client.settimeout(20)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{_address(server)[1]}\r\n"
        client.sendall(f"{head}Content-Length: {length}\r\n\r\n{{}}".encode())
        if length != "99999999999999999999":
            assert b" 400 " in client.recv(4096)
    _is_fine(server)


@pytest.mark.parametrize(
    "content",
    [
        '{"model":"tiny","prompt":"a","max_tokens":1,"temperature":NaN}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"temperature":Infinity}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"temperature":1e999}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"logit_bias":{"5":NaN}}',
        '{"model":"tiny","prompt":"a","max_tokens":1e400}',
        '{"model":"tiny","prompt":"a","max_tokens":' + "9" * 5000 + "}",
        '{"model":"tiny","prompt":"a","max_tokens":1,"seed":' + "9" * 5000 + "}",
        '{"model":"tiny","prompt":[' + "9" * 5000 + "]}",
        '{"model":"tiny","prompt":"a","max_tokens":1,"n":100000000}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"n":-1}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"best_of":100000}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"stop":' + json.dumps(["x"] * 1000) + "}",
        '{"model":"tiny","prompt":"a","max_tokens":1,"stop":[""]}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"stop":["\\ud800"],"x":1}',
        '{"model":"tiny","prompt":"\\ud800","max_tokens":1}',
        '{"model":"\\ud800","prompt":"a","max_tokens":1}',
        '{"model":"tiny","prompt":"a","\\ud800":1}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"regex":"\\ud800"}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"choices":["\\ud800"]}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"json_schema":{"const":"\\ud800"}}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"grammar":"start: \\"\\ud800\\""}',
        '{"model":"tiny","prompt":"a","max_tokens":1,"metadata":' + '{"a":' * 3000 + "1" + "}" * 3000 + "}",
        *(
            '{"model":"tiny","prompt":"a","max_tokens":1,"response_format":{"type":"structural_tag","structures":'
            f'[{{"begin":"{begin}","schema":{{}},"end":"{end}"}}],"triggers":["{trigger}"]}}}}'
            for begin, end, trigger in (
                ("\\ud800", "", "a"),
                ("a", "\\ud800", "a"),
                ("a", "", "\\ud800"),
                ("a", "", ""),
            )
        ),
        '{"model":"tiny","prompt":[[]],"max_tokens":1}',
        '{"model":"tiny","prompt":[[1],"a"],"max_tokens":1}',
        '{"model":"tiny","prompt":[true],"max_tokens":1}',
        '{"model":"tiny","prompt":[1.5],"max_tokens":1}',
        '{"model":"tiny","prompt":{},"max_tokens":1}',
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_case_a01_values_out_of_this_world(server: Served, content: str, is_stream: bool) -> None:
    """Refused in one sentence of JSON that can be parsed, never an error of the server's."""
    content = content[:-1] + ',"stream":true}' if is_stream else content
    answer = _raw(server, content)
    assert answer.status_code in {400, 404}, answer.text[:300]
    message = answer.json()["error"]["message"]
    assert 10 < len(message) < 1500, message[:100]
    assert "Traceback" not in message


@pytest.mark.parametrize("field", ["cache_salt", "user", "stop", "stop_regex"])
def test_half_a_pair_where_it_changes_nothing_is_harmless(server: Served, field: str) -> None:
    answer = _raw(server, f'{{"model":"tiny","prompt":"a","max_tokens":1,"{field}":"\\ud800"}}')
    assert answer.status_code in {200, 400}, answer.text
    _is_fine(server)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/select", '{"text":"a","choices":["\\ud800"]}'),
        ("/select", '{"text":"\\ud800","choices":["a"]}'),
        ("/select", '{"text":"a","choice_ids":[[99999999999999999999]]}'),
        ("/fork", '{"text":"a","suffixes":["\\ud800"]}'),
        ("/generate", '{"text":"\\ud800"}'),
        ("/generate", '{"segments":["\\ud800"]}'),
        ("/generate", '{"segments":[{"special":"\\ud800"}]}'),
        ("/generate", '{"segments":[{"open":["\\ud800"]}]}'),
        ("/generate", '{"text":"a","stream_id":"\\ud800"}'),
        ("/generate", '{"text":"a","sampling_params":{"choices":["\\ud800"]}}'),
        ("/tokenize", '{"prompt":"\\ud800"}'),
        ("/detokenize", '{"tokens":[-1]}'),
        ("/detokenize", '{"tokens":[99999999999999999999]}'),
        ("/cache/explain", '{"text":"\\ud800"}'),
        ("/abort", '{"rid":"\\ud800"}'),
        ("/close_streams", '{"streams":[{"stream_id":"\\ud800"}]}'),
        ("/v1/responses", '{"model":"tiny","input":"\\ud800"}'),
        ("/v1/responses", '{"model":"tiny","input":"a","instructions":"\\ud800"}'),
        ("/v1/chat/completions", '{"model":"tiny","messages":[{"role":"user","content":"a"}],"tool_choice":"required",'
         '"tools":[{"type":"function","function":{"name":"\\ud800"}}]}'),
    ],
)  # fmt: skip
def test_half_pairs_and_odd_ids_on_every_route(server: Served, path: str, body: str) -> None:
    answer = _raw(server, body, path)
    assert answer.status_code in {400, 404}, answer.text
    assert len(answer.json()["error"]["message"]) > 10


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": []}],
        [{"role": "assistant", "content": None, "tool_calls": []}],
        [
            {
                "role": "assistant",
                "tool_calls": [{"id": "", "type": "function", "function": {"name": "", "arguments": ""}}],
            }
        ],
        [{"role": "tool", "content": "x"}],
        [{"role": "system", "content": ""}] * 50,
        [{}],
        [None],
        {},
        "x",
    ],
)
def test_empty_and_odd_messages(server: Served, messages: Any) -> None:
    for stream in (False, True):
        answer = _raw(server, json.dumps({**CHAT, "messages": messages, "stream": stream}), "/v1/chat/completions")
        assert answer.status_code in {200, 400}, answer.text
    _is_fine(server)


def test_many_stops_of_many_lengths(server: Served) -> None:
    stops = ["x" * n for n in range(1, 64)]
    whole = server.ok("/v1/completions", **{**LONG, "stream": False, "max_tokens": 200, "stop": stops, "seed": 1})
    assert "x" not in whole["choices"][0]["text"]
    _is_fine(server)


def test_flushing_while_streams_run(server: Served) -> None:
    """Flushes, explanations and trees between the steps of eight streams: each text is what it is alone."""
    body = {**LONG, "max_tokens": 60, "temperature": 0}
    alone = "".join(e["choices"][0]["text"] for e in server.events("/v1/completions", **body)[:-1])
    texts: list[str] = []

    def read() -> None:
        with (
            httpx.Client(base_url=server.url, timeout=60) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
        texts.append("".join(event["choices"][0]["text"] for event in events))

    readers = [threading.Thread(target=read) for _ in range(8)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        server.http.post("/flush_cache")
        server.http.get("/cache/tree")
        server.ok("/cache/explain", text="abc")
    assert texts == [alone] * 8
    _is_fine(server)


def test_two_servers_on_one_cache_directory(tmp_path: Any) -> None:
    """Both write and read it; what one computed the other finds, and answers do not change."""
    from tests.support.tiny_server import tiny_runtime

    body: Any = {"model": "tiny", "max_tokens": 4, "temperature": 0, "logit_bias": ASCII_ONLY}
    prompts = [f"{n}: " + "a prompt of some length " * 8 for n in range(4)]
    settings: Any = {"cache_dir": str(tmp_path), "host_cache_bytes": 2**20}
    with serving(tiny_runtime(**settings)) as one, serving(tiny_runtime(**settings)) as two:
        answers = [
            [s.ok("/v1/completions", prompt=p, **body)["choices"][0]["text"] for p in prompts] for s in (one, two)
        ]
        again = [[s.ok("/v1/completions", prompt=p, **body)["choices"][0]["text"] for p in prompts] for s in (two, one)]
        assert answers[0] == answers[1] == again[0] == again[1]
        for server in (one, two):
            server.comes_to_rest()
    more = {**body, "return_cached_tokens_details": True}
    with serving(tiny_runtime(**settings)) as third:
        done = third.ok("/v1/completions", prompt=prompts[0], **more)
        assert done["choices"][0]["text"] == answers[0][0]
        tiers = done["usage"]["prompt_tokens_details"]["cached_tokens_details"]
        assert tiers["file"] + tiers["host"] > 0, "the host tier was empty, so its tokens came from the files too"
    assert os.listdir(tmp_path)
