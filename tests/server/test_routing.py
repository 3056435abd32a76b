"""`cache`, `cache_salt` and `priority` reach the engine: from programs, in this process and over HTTP, and by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lmprog import Backend, Runtime, RuntimeEndpoint, State, beam, function, gen, select
from lmprog_runtime.runtime import LocalRuntime
from tests.support.tiny_server import ASCII_ONLY, Served, tiny_runtime

TEXT = "a prompt that is as long as it needs to be, "
Place = tuple[Backend, LocalRuntime]


@pytest.fixture(params=["in this process", "over HTTP"])
def place(request: pytest.FixtureRequest, server: Served) -> Iterator[Place]:
    if request.param == "over HTTP":
        server.ok("/flush_cache")
        with RuntimeEndpoint(server.url) as endpoint:
            yield endpoint, server.runtime
    else:
        runtime = tiny_runtime()
        with Runtime.over(runtime) as here:
            yield here, runtime


@function
def program(s: State) -> None:
    s += TEXT + gen("a", max_tokens=4, temperature=0, ignore_eos=True) + " and "
    s += select("b", [" yes", " no"])


def _cached(backend: Backend, **options: Any) -> int:
    state = program.run(backend=backend, **options)
    state.sync()
    return state.usage.cached_tokens


def test_nothing_is_reused_without_the_cache(place: Place) -> None:
    backend, _ = place
    first, again = _cached(backend), _cached(backend)
    assert again > first + len(TEXT) - 2
    assert _cached(backend, cache=False) == 0
    assert _cached(backend) == again


def test_runs_share_with_those_of_their_salt_only(place: Place) -> None:
    backend, _ = place
    salts: list[dict[str, Any]] = [{}, {"cache_salt": ""}, {"cache_salt": "a"}, {"cache_salt": "b"}]
    first = [_cached(backend, **salt) for salt in salts]
    assert first == [first[0]] * 4
    again = [_cached(backend, **salt) for salt in salts]
    assert again == [again[0]] * 4
    assert again[0] > first[0] + len(TEXT) - 2


def test_the_engine_gets_them_with_every_kind_of_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, runtime = place
    seen: list[Any] = []
    submit_group = runtime.engine.submit_group

    def record(requests: Any, sinks: Any) -> Any:
        seen.extend(requests)
        return submit_group(requests, sinks)

    @function
    def every_kind(s: State) -> None:
        s += TEXT + gen("a", max_tokens=1) + beam(gen("c", max_tokens=2), width=2)
        s += select("b", ["yes", "no"], choices_method="unconditional_likelihood_normalized")

    monkeypatch.setattr(runtime.engine, "submit_group", record)
    every_kind.run(backend=backend, cache=False, cache_salt="s", priority=-2).sync()
    assert len(seen) > 5
    assert {(each.use_cache, each.salt, each.priority) for each in seen} == {(False, "s", -2)}


TINY = {"model": "tiny", "max_tokens": 1, "temperature": 0}
NATIVE = {"sampling_params": {"max_new_tokens": 1, "temperature": 0, "logit_bias": ASCII_ONLY}}
ENDPOINTS: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/completions": ({"prompt": TEXT, **TINY}, "usage.prompt_tokens_details.cached_tokens"),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": TEXT}], **TINY},
        "usage.prompt_tokens_details.cached_tokens",
    ),
    "/v1/responses": (
        {"model": "tiny", "input": TEXT, "max_output_tokens": 16, "temperature": 0, "store": False},
        "usage.input_tokens_details.cached_tokens",
    ),
    "/generate": ({"text": TEXT, **NATIVE}, "meta_info.cached_tokens"),
    "/select": ({"text": TEXT, "choices": [" yes", " no"]}, "meta_info.cached_tokens"),
    "/fork": ({"text": TEXT, "suffixes": ["x"], **NATIVE}, "branches.0.meta_info.cached_tokens"),
}


def _cached_by(server: Served, path: str, **fields: Any) -> int:
    body, where = ENDPOINTS[path]
    answer = server.ok(path, **body, **fields)
    for name in where.split("."):
        answer = answer[int(name)] if name.isdigit() else answer[name]
    assert isinstance(answer, int)
    return answer


@pytest.mark.parametrize("path", ENDPOINTS)
def test_case_r08_every_endpoint_isolates_by_salt(server: Served, path: str) -> None:
    """R08: only equal salts share; none, "" and "a" are three."""
    server.ok("/flush_cache")
    salts: list[dict[str, Any]] = [{}, {"cache_salt": ""}, {"cache_salt": "a"}]
    assert [_cached_by(server, path, **salt) for salt in salts] == [0] * 3
    again = [_cached_by(server, path, **salt) for salt in salts]
    assert again == [again[0]] * 3
    assert again[0] >= len(TEXT) - 4


@pytest.mark.parametrize("path", ["/generate", "/select"])
def test_a_miss_can_be_forced(server: Served, path: str) -> None:
    server.ok("/flush_cache")
    _cached_by(server, path)
    assert _cached_by(server, path) > 0
    assert _cached_by(server, path, use_cache=False) == 0
