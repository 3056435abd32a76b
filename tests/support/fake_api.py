"""A server on loopback that speaks just enough of OpenAI's and Anthropic's APIs for their real clients.

A reply is a text, a `Reply`, an `ApiError`, or a function from the request's body to one of these.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    text: str = ""
    finish: str = "stop"
    usage: tuple[int, int, int] = (10, 4, 3)  # prompt, cached of those, written
    logprobs: bool = False
    refusal: str | None = None
    stop: str | None = None
    delay: float = 0.0
    breaks_after: int | None = None  # pieces of a stream, then the connection is closed


@dataclass
class ApiError:
    status: int
    code: str = ""
    message: str = "the server says no"


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeApi:
    url: str = ""
    script: Any = "hello there you"
    requests: list[Request] = field(default_factory=list)
    models: Callable[[str], list[float]] | None = None  # log-probabilities of the words of a prompt, for echoes

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request.body for request in self.requests]

    def reply(self, body: dict[str, Any]) -> Reply | ApiError:
        script = self.script
        while callable(script):
            script = script(body)
        return Reply(script) if isinstance(script, str) else script


@contextmanager
def fake_api(script: Any = "hello there you", **options: Any) -> Iterator[FakeApi]:
    api = FakeApi(script=script, **options)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+\Z", text)


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.api.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        reply = self.api.reply(body)
        if isinstance(reply, ApiError):
            self._send(reply.status, {"error": {"message": reply.message, "code": reply.code, "type": reply.code}})
            return
        time.sleep(reply.delay)
        if self.path.endswith("/messages"):
            answers = _messages(reply)
        elif self.path.endswith("/chat/completions"):
            answers = _chat(reply)
        else:
            answers = _completion(reply, body, self.api)
        if body.get("stream"):
            self._stream(answers[1], reply)
        else:
            self._send(200, answers[0])

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: list[dict[str, Any]], reply: Reply) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client may leave
            self._send_events(events, reply)
        self.close_connection = True

    def _send_events(self, events: list[dict[str, Any]], reply: Reply) -> None:
        for number, event in enumerate(events):
            if number == reply.breaks_after:
                return
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n" if "type" not in events[0] else b"")


def _usage(reply: Reply) -> dict[str, Any]:
    prompt, cached, written = reply.usage
    details = {"cached_tokens": cached}
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": details,
    }


def _logprobs(text: str) -> dict[str, Any]:
    def entry(token: str) -> dict[str, Any]:
        return {"token": token, "logprob": -0.5, "bytes": None}

    content = [{**entry(token), "top_logprobs": [entry(token), entry("other")]} for token in pieces(text)]
    return {"content": content, "refusal": None}


def _chat(reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head = {"id": "1", "created": 1, "model": "m"}
    message = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
    logprobs = _logprobs(reply.text) if reply.logprobs else None
    choice = {"index": 0, "message": message, "finish_reason": reply.finish, "logprobs": logprobs}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(reply)}

    def chunk(delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {**head, "object": "chat.completion.chunk", "choices": [choice], "usage": None}

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": p}, None, _logprobs(p) if reply.logprobs else None) for p in pieces(reply.text)]
    events += [chunk({}, reply.finish), {**chunk({}), "choices": [], "usage": _usage(reply)}]
    return whole, events


def _completion(reply: Reply, body: dict[str, Any], api: FakeApi) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head = {"id": "1", "created": 1, "model": "m", "object": "text_completion"}
    if body.get("echo"):
        choices = [_echoed(index, prompt, api) for index, prompt in enumerate(body["prompt"])]
        return {**head, "choices": choices[::-1], "usage": _usage(reply)}, []
    logprobs = _text_logprobs(pieces(reply.text)) if reply.logprobs else None
    choice = {"index": 0, "text": reply.text, "finish_reason": reply.finish, "logprobs": logprobs}
    if reply.stop is not None:
        choice["stop_reason"] = reply.stop
    whole = {**head, "choices": [choice], "usage": _usage(reply)}

    def chunk(text: str, finish: str | None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "text": text, "finish_reason": finish, "logprobs": None}]}

    events = [*(chunk(piece, None) for piece in pieces(reply.text)), chunk("", reply.finish)]
    return whole, [*events, {**head, "choices": [], "usage": _usage(reply)}]


def _text_logprobs(tokens: list[str]) -> dict[str, Any]:
    tops = [{token: -0.5, "other": -1.5} for token in tokens]
    return {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": tops, "text_offset": []}


def _echoed(index: int, prompt: str, api: FakeApi) -> dict[str, Any]:
    tokens = pieces(prompt)
    offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
    logprobs = None
    if api.models is not None:
        values: list[float | None] = [None, *api.models(prompt)[1:]]
        logprobs = {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}
    return {"index": index, "text": prompt, "finish_reason": "length", "logprobs": logprobs}


def _messages(reply: Reply) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    prompt, cached, written = reply.usage
    usage = {
        "input_tokens": prompt - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": written,
    }
    reason = {"stop": "end_turn", "length": "max_tokens"}.get(reply.finish, reply.finish)
    head = {"id": "1", "type": "message", "role": "assistant", "model": "m"}
    whole = {
        **head,
        "content": [{"type": "text", "text": reply.text}],
        "stop_reason": reason,
        "stop_sequence": reply.stop,
        "usage": usage,
    }
    start = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ]
    for piece in pieces(reply.text):
        events.append({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
    events += [
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": reply.stop},
            "usage": {"output_tokens": written},
        },
        {"type": "message_stop"},
    ]
    return whole, events
