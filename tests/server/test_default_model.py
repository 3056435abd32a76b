"""The server over the real default model: H01 against transformers, and what a user sees first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import MODEL, PROMPTS, oracle_logprobs
from tests.support.tiny_server import Served, serving

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def real() -> Iterator[Served]:
    with serving(LocalRuntime.start(model=MODEL, dtype="float32", max_total_tokens=8192)) as server:
        yield server


def test_echoed_logprobs_are_those_of_transformers(real: Served) -> None:
    """Sums within 1e-3, and the greedy flag as harnesses compute it, for id lists in one batch."""
    prompts = [real.ok("/tokenize", prompt=text)["tokens"] for text in PROMPTS]
    asked = {"model": MODEL, "prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    choices = real.ok("/v1/completions", **asked)["choices"]
    for ids, choice in zip(prompts, choices, strict=True):
        found = choice["logprobs"]["token_logprobs"][1:-1]
        assert len(found) == len(ids) - 1
        assert sum(found) == pytest.approx(sum(oracle_logprobs(tuple(ids))), abs=1e-3)
        for logprob, top in zip(found, choice["logprobs"]["top_logprobs"][1:-1], strict=True):
            assert logprob in top.values()


class Colour(BaseModel):
    name: str
    red: int


def test_a_chat_with_a_schema_and_a_cached_second_turn(real: Served) -> None:
    messages = [{"role": "user", "content": "Describe a colour."}]
    ask = real.openai.chat.completions.parse
    first = ask(model=MODEL, messages=messages, response_format=Colour, temperature=0, max_tokens=200)
    assert isinstance(first.choices[0].message.parsed, Colour)
    history = [*messages, {"role": "assistant", "content": first.choices[0].message.content}, messages[0]]
    second = ask(model=MODEL, messages=history, response_format=Colour, temperature=0, max_tokens=200)
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens - 3
