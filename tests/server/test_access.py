"""A08 and the rest of what makes the server safe by default."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.lru import DEFAULT_ENTRIES
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import Constraint
from lmprog_runtime.server.access import ADMIN_ROUTES, OPEN_ROUTES, check_settings
from lmprog_runtime.server.app import create_app
from lmprog_runtime.server.limits import depth
from lmprog_runtime.server.settings import ServerSettings
from tests.support.tiny_engine import TOKENIZER
from tests.support.tiny_server import Served, serving

KEY, ADMIN = "sk-secret-one", "sk-secret-admin"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def guarded():
    with serving(api_key=f"{KEY}, sk-other", admin_api_key=ADMIN, log_requests=True) as server:
        yield server


def _routes(server: Served) -> list[tuple[str, str]]:
    app = create_app(server.state)
    found = [(method, route.path) for route in app.routes if isinstance(route, APIRoute) for method in route.methods]
    return [*found, ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/never/heard/of/it")]


def _status(server: Served, method: str, path: str, key: str | None) -> int:
    headers = {b"Authorization": f"Bearer {key}".encode()} if key is not None else {}
    url = server.url + re.sub(r"\{.*?\}", "tiny", path)
    return httpx.request(method, url, headers=headers, content=b"" if method == "GET" else b"{}").status_code


def test_case_a08_every_route_is_closed_unless_listed(guarded: Served) -> None:
    """The router is enumerated, so that a new route is tested too."""
    routes = _routes(guarded)
    assert len(routes) > 20
    assert {path for _, path in routes} > OPEN_ROUTES | ADMIN_ROUTES
    for method, path in routes:
        for key in (None, "wrong", f"{KEY}x", KEY[:-1], "sk-ä"):
            is_closed = (path in OPEN_ROUTES) == (_status(guarded, method, path, key) != 401)
            assert is_closed, (method, path, key)
        assert (_status(guarded, method, path, KEY) == 401) == (path in ADMIN_ROUTES), path
        assert _status(guarded, method, path, ADMIN) != 401, path
    assert _status(guarded, "GET", "/v1/models", "sk-other") == 200


def test_trailing_slashes_and_doubled_ones_open_nothing(guarded: Served) -> None:
    for path in ("/stats/", "//stats", "/%73tats", "/health/../stats", "/page/../stats"):
        assert httpx.get(guarded.url + path, headers={"Authorization": f"Bearer {KEY}"}).status_code in {401, 404, 307}
        assert httpx.get(guarded.url + path).status_code == 401


def test_case_a08_secrets_and_prompts_are_nowhere(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    prompt = "a very private sentence about Alice"
    headers = {"Authorization": f"Bearer {ADMIN}"}
    with caplog.at_level(logging.DEBUG), httpx.Client(base_url=guarded.url, headers=headers) as client:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "cache_salt": "salty-secret"}
        assert client.post("/v1/completions", json=body).status_code == 200
        assert client.post("/v1/completions", json={**body, "temperature": -1}).status_code == 400
        shown = [client.get(path).text for path in ("/get_server_info", "/stats", "/metrics", "/cache/tree")]
        shown += [client.get("/get_model_info").text, client.post("/cache/explain", json={"text": "a very"}).text]
    shown += [record.getMessage() for record in caplog.records]
    assert any("POST /v1/completions 200" in text and "prompt=35" in text for text in shown), "requests are logged"
    for text in shown:
        for secret in (KEY, ADMIN, "Alice", "private", "salty-secret"):
            assert secret not in text
        assert not re.search(r'"token_ids"', text)


def test_cached_text_is_shown_on_request_only() -> None:
    with serving(show_cache_text=True) as server:
        server.ok("/v1/completions", model="tiny", prompt="a private sentence", max_tokens=1)
        assert "a private sentence" in server.http.get("/cache/tree").text


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "example.org", "::"])
def test_case_a08_public_addresses_need_a_key(host: str) -> None:
    with pytest.raises(ValueError, match="without an API key"):
        check_settings(ServerSettings(host=host))
    check_settings(ServerSettings(host=host, api_key="k"))
    check_settings(ServerSettings(host=host, allow_public_without_key=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    check_settings(ServerSettings(host=host))


def test_without_a_key_pages_of_other_sites_are_refused(server: Served) -> None:
    """Forms across origins, and names that were pointed at this address."""
    port = server.url.rsplit(":", 1)[1]
    assert server.http.get("/stats", headers={"Host": f"evil.example:{port}"}).status_code == 403
    assert server.http.post("/flush_cache", headers={"Origin": "https://evil.example"}).status_code == 403
    assert server.http.post("/flush_cache", headers={"Origin": server.url}).status_code == 200
    assert server.http.get("/stats", headers={"Host": f"localhost:{port}"}).status_code == 200


def test_prefixes_are_not_shared_between_keys() -> None:
    with serving(api_key="one,two", isolate_cache=True) as server:
        body = {"model": "tiny", "prompt": "the same prompt for everybody", "max_tokens": 1}

        def cached(key: str, **more: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            usage = httpx.post(f"{server.url}/v1/completions", json={**body, **more}, headers=headers).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert cached("one") == 0
        assert cached("one") == 28
        assert cached("two") == 0
        assert cached("two") == 28
        assert cached("one", cache_salt="x") == 0
        explained = httpx.post(
            f"{server.url}/cache/explain", json={"text": body["prompt"]}, headers={"Authorization": "Bearer two"}
        ).json()
        assert explained["matched"] == 28


def test_limits_before_parsing(server: Served) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    content = f'{{"model":"tiny","prompt":"a","metadata":{deep}}}'
    answer = server.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "deeper" in answer.json()["error"]["message"]
    with contextlib.suppress(httpx.ReadError, httpx.WriteError):  # it may hang up while we still send
        assert server.http.get("/v1/models", headers={"x-big": "a" * 200_000}).status_code == 400
    assert server.http.get("/health").status_code == 200


def test_depth_ignores_strings() -> None:
    assert depth(json.dumps({"a": '[[[[\\"{{{' * 50, "b": [[1]]}).encode()) == 3
    assert depth(b'"' * 1001) == 0
    assert depth(b'{"a": "\\') == 1
    assert depth(b'"' + b'\\"' * 500_000) == 0, "in linear time"
    assert depth(b"") == 0


def test_bodies_that_are_no_json(server: Served) -> None:
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'"x"', b"{'a':1}"):
        answer = server.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 400, content
        assert answer.json()["error"]["message"]


def test_request_ids_are_echoed_when_plain(server: Served) -> None:
    assert server.http.get("/health", headers={"X-Request-Id": "abc-1.2"}).headers["x-request-id"] == "abc-1.2"
    made = server.http.get("/health", headers={"X-Request-Id": "a b; \x7f"}).headers["x-request-id"]
    assert made.startswith("req-")


def test_case_a11_strangers_cannot_make_the_cache_of_constraints_grow() -> None:
    """20,000 small schemas, then 100 huge ones, then refused ones: it stays within both its limits."""
    vocabulary = Vocabulary(
        TOKENIZER.token_bytes, TOKENIZER.eos_ids, TOKENIZER.special_ids, lambda text: TOKENIZER.encode(text)
    )
    known = vocabulary.compiled
    assert DEFAULT_ENTRIES < 20_000
    for number in range(20_000):
        compile_constraint(Constraint("json_schema", f'{{"const": {number}}}'), vocabulary)
    assert len(known) <= DEFAULT_ENTRIES
    most_bytes = max(known.nbytes, 2**20)
    known.most_bytes = most_bytes
    for number in range(100):
        words = [f"{number}-{word}" for word in range(3000)]
        compile_constraint(Constraint("choices", json.dumps(words)), vocabulary)
        assert known.nbytes <= most_bytes or len(known) == 1
    for number in range(DEFAULT_ENTRIES + 10):
        with pytest.raises(RequestRefused):
            compile_constraint(Constraint("regex", f"({number}"), vocabulary)
    assert len(known) <= DEFAULT_ENTRIES
    assert known.nbytes <= most_bytes


def test_case_a11_no_code_is_ever_unpickled_or_evaluated() -> None:
    """A11: a scan of everything that ships."""
    imports, calls = (
        r"^\s*(import|from) (pickle|dill|marshal|shelve)\b",
        r"(?<![.\w])(eval|exec|torch\.load|yaml\.load)\(",
    )
    bad = re.compile(f"{imports}|{calls}")
    files = [file for folder in ("lmprog", "lmprog_runtime", "kernels") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = [f"{file}: {line}" for file in files for line in file.read_text().splitlines() if bad.search(line)]
    assert found == []


def test_the_command_line_refuses_what_is_unsafe() -> None:
    command = [sys.executable, "-m", "lmprog_runtime.launch_server", "--model-path", "x", "--host", "0.0.0.0"]
    out = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={"PATH": "", "PYTHONPATH": f"{ROOT}:{ROOT}/kernels"}
    )
    assert out.returncode == 1
    assert "Refusing to listen on 0.0.0.0" in out.stderr
    assert "Traceback" not in out.stderr


def test_case_a11_the_server_listens_on_loopback_only(server: Served) -> None:
    sockets = [socket for listener in server.server.servers for socket in listener.sockets]
    assert [listening.getsockname()[0] for listening in sockets] == ["127.0.0.1"]
    assert ServerSettings().host == "127.0.0.1"
