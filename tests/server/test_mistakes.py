"""Bodies that are wrong: each is told the range it left or the place of its mistake, and many mistakes cost no more
than one."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from lmprog_runtime.server.native import GenerateBody, SelectBody
from lmprog_runtime.server.protocol import ChatRequest, CompletionRequest, Strict
from lmprog_runtime.server.responses_protocol import ResponsesRequest
from tests.support.tiny_server import Served

COMPLETION = {"model": "tiny", "prompt": "a", "max_tokens": 1}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
MOST_ERRORS = 16


@pytest.mark.parametrize(
    ("field", "wrong", "right", "reason"),
    [
        ("min_p", (-0.01, 1.01), (0, 1), "from 0 to 1"),
        ("repetition_penalty", (0, -1), (0.01, 50), "above 0"),
        ("frequency_penalty", (-2.01, 2.01), (-2, 2), "from -2 to 2"),
        ("presence_penalty", (-2.01, 2.01), (-2, 2), "from -2 to 2"),
        ("top_p", (0, 1.01), (0.01, 1), "above 0 and at most 1"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_ranges(server: Served, path: str, field: str, wrong: Any, right: Any, reason: str) -> None:
    def body(value: float) -> dict[str, Any]:
        if path == "/generate":
            return {"text": "a", "sampling_params": {"max_new_tokens": 1, field: value}}
        return {**(CHAT if "chat" in path else COMPLETION), field: value}

    for value in wrong:
        assert server.refused(path, **body(value)) == f"{field} is {float(value)}; it must be {reason}."
    for value in right:
        server.ok(path, **body(value))


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/v1/completions", {**COMPLETION, "logprobs": 101}, "logprobs: Input should be less than or equal to 100."),
        ("/v1/completions", {**COMPLETION, "logprobs": -1}, "logprobs: Input should be greater than or equal to 0."),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 21},
         "top_logprobs: Input should be less than or equal to 20."),
        ("/generate", {"text": "a", "return_logprob": True, "top_logprobs_num": 101},
         "top_logprobs_num: Input should be less than or equal to 100."),
        ("/v1/completions", {**COMPLETION, "prompt": ["a"] * 4097}, "prompt: Value should have at most 4096 items"),
        ("/v1/completions", {**COMPLETION, "prompt": [[5]] * 4097}, "prompt: Value should have at most 4096 items"),
        ("/generate", {"text": ["a"] * 4097}, "text: List should have at most 4096 items"),
        ("/generate", {"input_ids": [[5]] * 4097}, "input_ids: List should have at most 4096 items"),
        ("/fork", {"text": "a", "suffixes": ["a"] * 4097}, "suffixes: List should have at most 4096 items"),
        ("/v1/completions", {**COMPLETION, "choices": ["a"] * 5001}, "choices: List should have at most 5000 items"),
        ("/v1/chat/completions", {**CHAT, "choices": ["a"] * 5001}, "choices: List should have at most 5000 items"),
        ("/select", {"text": "a", "choices": ["a"] * 5001}, "choices: List should have at most 5000 items"),
        ("/select", {"text": "a", "choice_ids": [[5]] * 5001}, "choice_ids: List should have at most 5000 items"),
        ("/v1/completions", {**COMPLETION, "stop": ["a"] * 65}, "stop: List should have at most 64 items"),
    ],
)  # fmt: skip
def test_numbers_of_things_are_bounded(server: Served, path: str, fields: dict[str, Any], message: str) -> None:
    assert server.refused(path, **fields).startswith(message)


@pytest.mark.parametrize(
    ("prompt", "where", "reason"),
    [
        (7, "prompt", "a valid string or a valid list"),
        ({}, "prompt", "a valid string or a valid list"),
        ([True], "prompt.0", "a valid integer or a valid string or a valid list"),
        (["a", 5], "prompt.1", "a valid string"),
        ([5, 6, "a"], "prompt.2", "a valid integer"),
        ([[5], "a"], "prompt.1", "a valid list"),
        ([[5], [5, 1.5]], "prompt.1.1", "a valid integer"),
    ],
)
def test_of_several_kinds_the_likeliest_is_told(server: Served, prompt: Any, where: str, reason: str) -> None:
    error = server.post("/v1/completions", **{**COMPLETION, "prompt": prompt}).json()["error"]
    assert (error["param"], error["message"]) == (where, f"{where}: Input should be {reason}.")


def test_mistakes_inside_items_of_several_kinds_are_told_where_they_are(server: Served) -> None:
    items = [{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c", "name": 5, "arguments": "{}"}]
    assert server.refused("/v1/responses", model="tiny", input=items) == "input.1.name: Input should be a valid string."
    said = {"type": "function_call", "call_id": "c", "name": "f"}
    assert server.refused("/v1/responses", model="tiny", input=[said]) == "input.0.arguments: Field required."


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CompletionRequest, {"prompt": [True] * 20_000}),
        (CompletionRequest, {"prompt": [[True]] * 20_000}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(n): "x" for n in range(20_000)}}),
        (CompletionRequest, {"prompt": "a", **{f"unknown{n}": n for n in range(20_000)}}),
        (ChatRequest, {"messages": [{"role": "nobody", "content": 5}] * 9_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "text"}] * 20_000}]}),
        (ChatRequest, {"messages": [], "chat_template_kwargs": {str(n): [] for n in range(20_000)}}),
        (ResponsesRequest, {"input": [{"role": "nobody", "content": 5}] * 9_000}),
        (GenerateBody, {"input_ids": ["a"] * 20_000}),
        (GenerateBody, {"segments": [{"open": [5] * 9_000}] * 20_000}),
        (SelectBody, {"choice_ids": [["a"]] * 4_000}),
    ],
)
def test_many_mistakes_cost_no_more_than_a_few(model: type[Strict], fields: dict[str, Any]) -> None:
    """A body of 16 MB has room for millions: once 150 seconds and 13 GB, for one request."""
    with pytest.raises(ValidationError) as found:
        model.model_validate({"model": "tiny", **fields} if "model" in model.model_fields else fields)
    assert found.value.error_count() <= MOST_ERRORS


def test_every_list_of_every_body_ends_at_its_first_mistake() -> None:
    for name in ("native", "responses_protocol", "segments", "status", "streams"):
        importlib.import_module(f"lmprog_runtime.server.{name}")
    lists = [part for body in _bodies(Strict) for part in _lists(body.__pydantic_core_schema__)]
    assert len(lists) > 20
    assert all(part.get("fail_fast") is True for part in lists)


def _bodies(base: type[Strict]) -> Iterator[type[Strict]]:
    for body in base.__subclasses__():
        yield body
        yield from _bodies(body)


def _lists(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            yield schema
        schema = list(schema.values())
    for part in schema if isinstance(schema, (list, tuple)) else ():
        yield from _lists(part)
