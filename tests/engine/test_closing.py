"""`finish="close"`: complete within the budget, whatever the model would rather write."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from lmprog_runtime.errors import ConstraintUnsupported, RequestRefused
from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import constraint_compiler
from tests.support.byte_tokenizer import make_byte_tokenizer
from tests.support.tiny_engine import TINY_VOCAB, prompt, run, tiny_engine

MERGING = make_byte_tokenizer([(b'"', b":"), (b'"', b","), (b'"', b"}"), (b"a", b"b")], vocab_size=TINY_VOCAB)
SCHEMA = json.dumps(
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}}}
)


def _outputs(constraint: Constraint, max_tokens: int, **settings: bool) -> list[Completion]:
    compiler = constraint_compiler(MERGING)
    with tiny_engine(tokenizer=MERGING, compiler=compiler, **settings) as engine:
        params = [
            SamplingParams(max_tokens=max_tokens, temperature=1.5, seed=seed, finish="close") for seed in range(12)
        ]
        return [run(engine, GenerateRequest(prompt("x"), each, constraint=constraint)) for each in params]


@pytest.mark.parametrize("settings", [{}, {"jump_forward": False}, {"speculation": False}])
@pytest.mark.parametrize("max_tokens", [2, 5, 12, 30])
def test_json_is_complete_within_any_budget_that_has_room_for_some(max_tokens: int, settings: dict[str, bool]) -> None:
    for done in _outputs(Constraint("json_schema", SCHEMA), max_tokens, **settings):
        assert done.is_complete
        assert len(done.token_ids) <= max_tokens
        assert isinstance(json.loads(done.text), dict)


def test_an_endless_text_ends_where_the_pattern_accepts() -> None:
    for done in _outputs(Constraint("regex", "([a-c]{4}-)+"), 23):
        assert done.finish_reason == "stop"
        assert re.fullmatch("([a-c]{4}-)+", done.text)
        assert len(done.token_ids) <= 23


def test_a_budget_below_every_completion_is_used_up_and_reported() -> None:
    for done in _outputs(Constraint("regex", "[a-c]{30}"), 8):
        assert (done.is_complete, done.finish_reason, len(done.token_ids)) == (False, "length", 8)


def test_a_backend_that_knows_no_completions_refuses() -> None:
    pytest.importorskip("outlines_core", reason="outlines-core is not installed")
    compiler = constraint_compiler(MERGING, "outlines")
    request = GenerateRequest(prompt("x"), SamplingParams(max_tokens=5, finish="close"), Constraint("regex", "[a-c]+x"))
    with tiny_engine(tokenizer=MERGING, compiler=compiler) as engine:
        with pytest.raises(ConstraintUnsupported, match=r"leave finish='close' out, or use the default backend\.$"):
            run(engine, request)
        assert len(run(engine, replace(request, params=SamplingParams(max_tokens=5))).token_ids) > 0


def test_without_a_constraint_it_is_refused() -> None:
    with tiny_engine() as engine, pytest.raises(RequestRefused, match="nothing to close"):
        run(engine, GenerateRequest(prompt("x"), SamplingParams(max_tokens=5, finish="close")))
