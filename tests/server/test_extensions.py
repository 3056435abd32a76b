"""What the generating routes of /v1 take beyond OpenAI's fields: each changes the answer as it should."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

from tests.support.byte_tokenizer import FIRST_BYTE, IM_END
from tests.support.tiny_server import ASCII_ONLY, Served, eventually, serving, tiny_runtime

ROUTES = ("/v1/completions", "/v1/chat/completions")
CONST: Any = {"const": {"a": ["x", "y"]}}


def _body(route: str, fields: dict[str, Any]) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": "abc"}]} if "chat" in route else {"prompt": "abc"}
    return {"model": "tiny", "max_tokens": 40, "logit_bias": ASCII_ONLY, **asked, **fields}


def _choice_text(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice.get("message", choice.get("delta", {})).get("content") or ""


def _text(server: Served, route: str, **fields: Any) -> str:
    return _choice_text(server.ok(route, **_body(route, fields))["choices"][0])


def _tokens(server: Served, route: str, **fields: Any) -> int:
    return int(server.ok(route, **_body(route, fields))["usage"]["completion_tokens"])


def _streamed(server: Served, route: str, **fields: Any) -> str:
    events = server.events(route, **_body(route, fields))
    return "".join(_choice_text(choice) for event in events[:-1] for choice in event["choices"])


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"grammar": 'start: pair+ ";"\npair: "ab" | "cd"'}, "(ab|cd)+;"),
        ({"choices": ["yes", "yesterday", "no"]}, "yes|yesterday|no"),
        ({"regex": "[x-z]{3}[0-9]"}, "[x-z]{3}[0-9]"),
        ({"json_schema": {"enum": ["up", "down"]}}, '"up"|"down"'),
        ({"json_schema": '{"enum": ["up", "down"]}'}, '"up"|"down"'),
        ({"json_schema": CONST}, r'\{"a": \["x", "y"\]\}'),
        ({"json_schema": CONST, "whitespace": "compact"}, r'\{"a": \["x", "y"\]\}'),
        ({"json_schema": CONST, "whitespace": "dense"}, r'\{"a":\["x","y"\]\}'),
        ({"json_schema": CONST, "whitespace": " {3}"}, r'\{   "a"   :   \[   "x"   ,   "y"   \]   \}'),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": CONST}}, "whitespace": "dense"},
         r'\{"a":\["x","y"\]\}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", ROUTES)
def test_answers_match_what_they_are_asked_to(server: Served, route: str, fields: dict[str, Any], pattern: str) -> None:
    unbound = {**fields, "logit_bias": {}, "temperature": 1.0, "seed": 3}
    assert re.fullmatch(pattern, text := _text(server, route, **unbound)), text
    assert _streamed(server, route, **unbound) == text
    assert not re.fullmatch(pattern, _text(server, route)), "without the field it would not"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("names", [("zebra", "apple", "mango"), ("apple", "mango", "zebra")])
def test_case_c08_members_come_in_the_order_of_the_bytes_sent(
    server: Served, route: str, names: tuple[str, ...]
) -> None:
    """C08: no parser, model of a request or cache key on the way sorts them."""
    members = ",".join(f'"{name}":{{"type":"null"}}' for name in names)
    required = json.dumps(sorted(names, reverse=True))
    schema = f'{{"type":"object","properties":{{{members}}},"required":{required},"additionalProperties":false}}'
    for field in (
        f'"json_schema":{schema}',
        f'"response_format":{{"type":"json_schema","json_schema":{{"schema":{schema}}}}}',
    ):
        body = f'{json.dumps(_body(route, {}))[:-1]},"whitespace":"dense",{field}}}'
        answer = server.http.post(route, content=body, headers={"content-type": "application/json"})
        wanted = ",".join(f'"{name}":null' for name in names)
        assert _choice_text(answer.json()["choices"][0]) == f"{{{wanted}}}"


@pytest.mark.parametrize("route", ROUTES)
def test_case_c16_each_of_several_answers_keeps_to_the_schema(server: Served, route: str) -> None:
    """C16: four samples of one request, each a state of its own."""
    schema = {"type": "array", "items": {"enum": ["ab", "cd", "ef"]}, "minItems": 2, "maxItems": 3}
    choices = server.ok(route, **_body(route, {"json_schema": schema, "n": 4, "seed": 1, "temperature": 2.0}))[
        "choices"
    ]
    found = [json.loads(_choice_text(choice)) for choice in choices]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert all(2 <= len(each) <= 3 and set(each) <= {"ab", "cd", "ef"} for each in found)
    assert len({tuple(each) for each in found}) > 1


@pytest.mark.parametrize("route", ROUTES)
def test_a_response_format_of_text_leaves_the_answer_as_it_is(server: Served, route: str) -> None:
    free = _text(server, route, temperature=0)
    assert len(free) == 40
    assert _text(server, route, temperature=0, response_format={"type": "text"}) == free
    assert _streamed(server, route, temperature=0, response_format={"type": "text"}) == free


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}])
@pytest.mark.parametrize("route", ROUTES)
def test_filters_that_leave_one_token_are_greedy(server: Served, route: str, fields: dict[str, Any]) -> None:
    hot: dict[str, Any] = {"temperature": 3.0, "seed": 1}
    greedy = _text(server, route, temperature=0)
    assert _text(server, route, **hot) != greedy
    assert _text(server, route, **hot, **fields) == greedy


@pytest.mark.parametrize("route", ROUTES)
def test_top_k_leaves_so_many(server: Served, route: str) -> None:
    """All biased alike but for four letters, which then are the four likeliest at every place."""
    four = {str(FIRST_BYTE + ord(letter)): 50 for letter in "wxyz"}
    hot: dict[str, Any] = {"temperature": 100.0, "seed": 1, "logit_bias": {**ASCII_ONLY, **four}, "max_tokens": 100}
    assert set(_text(server, route, **hot, top_k=4)) == set("wxyz")
    assert set(_text(server, route, **hot)) > set("wxyz")


@pytest.mark.parametrize("route", ROUTES)
def test_ends_can_be_held_off(server: Served, route: str) -> None:
    at_once: dict[str, Any] = {"logit_bias": {str(IM_END): 100}, "temperature": 0, "max_tokens": 9}
    assert _tokens(server, route, **at_once) == 1
    assert _tokens(server, route, **at_once, min_tokens=6) == 7, "six, and the end"
    assert _tokens(server, route, **at_once, ignore_eos=True) == 9


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "aaaaaa"),
        ({"presence_penalty": 1.0}, "abaaaa"),  # then both have it
        ({"frequency_penalty": 1.0}, "ababab"),
        ({"stop_token_ids": [FIRST_BYTE + ord("a")]}, "a"),  # text, as it is no control token
        ({"stop_regex": "a{3}"}, ""),
    ],
)
@pytest.mark.parametrize("route", ROUTES)
def test_penalties_and_stops(server: Served, route: str, fields: dict[str, Any], text: str) -> None:
    """Two letters stand out, one a little more than the other."""
    bias = {str(FIRST_BYTE + ord("a")): 60.5, str(FIRST_BYTE + ord("b")): 60}
    assert _text(server, route, temperature=0, max_tokens=6, logit_bias=bias, **fields) == text


@pytest.mark.parametrize("route", ROUTES)
def test_a_repetition_penalty_makes_letters_differ(server: Served, route: str) -> None:
    bias = {str(FIRST_BYTE + ord(letter)): 50 for letter in "DEFGHIJKLMNOPQRSTUVWXYZ"}
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logit_bias": bias}
    plain, varied = _text(server, route, **asked), _text(server, route, **asked, repetition_penalty=100.0)
    assert len(set(plain)) < len(set(varied)), (plain, varied)


@pytest.mark.parametrize("route", ROUTES)
def test_a_higher_priority_goes_first(route: str) -> None:
    """Both wait; there is room for one; the second to come is the first to run."""
    first_to_run: list[int] = []
    with serving(tiny_runtime(max_running=1)) as server:
        engine, executor, go_on = server.runtime.engine, server.runtime.executor, threading.Event()
        step = executor.step

        def noting(batch: Any) -> Any:
            first_to_run.extend(sequence.priority for sequence in engine.scheduler.running)
            return step(batch)

        executor.step = noting  # type: ignore[method-assign]
        engine.call(lambda: go_on.wait(60))
        eventually(lambda: engine._commands.empty())
        threads = []
        for number, priority in enumerate((0, 7)):
            body = _body(route, {"priority": priority, "max_tokens": 2})
            threads.append(threading.Thread(target=server.ok, args=(route,), kwargs=body))
            threads[-1].start()
            eventually(lambda: engine._commands.qsize() == number + 1)  # noqa: B023
        go_on.set()
        for thread in threads:
            thread.join(30)
    assert first_to_run[0] == 7
    assert first_to_run[-1] == 0
