"""Whatever the model says, at temperature 1.5: a regex matches or is said to be cut; JSON is closed, always valid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

import jsonschema
import pytest

from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import MODEL
from tests.support.tiny_engine import start

pytestmark = pytest.mark.model

REGEXES = [
    r"\d{4}-\d\d-\d\d",
    r"(Mon|Tues|Wednes|Thurs|Fri)day",
    r"[A-Z][a-z]{2,9}( [A-Z][a-z]{2,9}){1,2}",
    r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
    r"[^\x00-\x7f]{1,6}",
    r"-?(0|[1-9]\d{0,5})(\.\d{1,4})?",
    r"(yes|yes please|no)",
    r".{3,20}[.!?]",
]
SCHEMAS: list[dict[str, object]] = [
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name"],
    },
    {"type": "array", "items": {"type": "number", "minimum": -5, "maximum": 99.5}, "minItems": 1, "maxItems": 4},
    {"enum": ["red", "green", {"deep": [1, None, True]}]},
    {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.(com|org)$", "maxLength": 24},
    {
        "anyOf": [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
        ]
    },
    {
        "type": "object",
        "properties": {"kind": {"const": "leaf"}, "next": {"$ref": "#"}},
        "required": ["kind"],
        "additionalProperties": False,
    },
    {"type": "string", "format": "date-time", "maxLength": 32},
]
ROUNDS = 200 // (len(REGEXES) + len(SCHEMAS)) + 1


@pytest.fixture(scope="module")
def runtime() -> Iterator[LocalRuntime]:
    runtime = LocalRuntime.start(model=MODEL, dtype="float32", max_total_tokens=32768)
    yield runtime
    runtime.close()


def _run_all(runtime: LocalRuntime, constraint: Constraint, finish: Literal["close"] | None = None) -> list[Completion]:
    prompt = runtime.tokenizer.encode("Here is one more: ")
    params = [SamplingParams(max_tokens=64, temperature=1.5, seed=seed, finish=finish) for seed in range(ROUNDS)]
    waiters = [start(runtime.engine, GenerateRequest(prompt, each, constraint=constraint))[1] for each in params]
    return [waiter.result(timeout=120) for waiter in waiters]


@pytest.mark.parametrize("pattern", REGEXES)
def test_regex_outputs_match(runtime: LocalRuntime, pattern: str) -> None:
    results = _run_all(runtime, Constraint("regex", pattern))
    for result in results:
        assert bool(re.fullmatch(pattern, result.text)) == result.is_complete, result.text
    assert any(result.is_complete for result in results)
    assert all(result.is_complete or result.finish_reason == "length" for result in results)


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: json.dumps(schema)[:40])
def test_json_outputs_are_valid(runtime: LocalRuntime, schema: dict[str, object]) -> None:
    checker = jsonschema.Draft202012Validator(schema)
    results = _run_all(runtime, Constraint("json_schema", json.dumps(schema)), "close")
    for result in results:
        assert result.is_complete
        checker.validate(json.loads(result.text))
    assert len({result.text for result in results}) > 1
