"""The OpenAI backend over this project's own server gives what the runtime in the process gives."""

from __future__ import annotations

import json

import pytest

from lmprog import assistant, function, gen, select, system, user
from lmprog.backends.local import Runtime
from lmprog.backends.openai import OpenAI
from lmprog.errors import ConstraintInvalid, PromptTooLong
from tests.support.tiny_server import ASCII_ONLY, CONTEXT

BIAS = {int(token): bias for token, bias in ASCII_ONLY.items()}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}


def connected(server, **options):
    return OpenAI("tiny", base_url=f"{server.url}/v1", api_key="none", **options)


def both(server, body, *, is_chat_model, **options):
    """The same program here and there."""
    program = function(temperature=0)(body)
    here = program.run(backend=Runtime.over(server.runtime), **options)
    with connected(server, is_chat_model=is_chat_model) as backend:
        there = program.run(backend=backend, **options)
        there.sync()
    here.sync()
    return here, there


def written(s):
    s += (
        "Once upon a time" + gen("x", max_tokens=12, logit_bias=BIAS) + " and" + gen("y", max_tokens=5, logit_bias=BIAS)
    )


def talked(s):
    s += system("Be kind.") + user("Hi?") + assistant(gen("x", max_tokens=12, logit_bias=BIAS))
    s += user("And?") + assistant(gen("y", max_tokens=5, logit_bias=BIAS))


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("body", "is_chat"), [(written, False), (talked, True)])
def test_the_same_texts(server, body, is_chat, streams):
    here, there = both(server, body, is_chat_model=is_chat, stream=streams)
    assert (there["x"], there["y"]) == (here["x"], here["y"])
    assert there.usage.prompt_tokens == here.usage.prompt_tokens
    assert there.usage.completion_tokens == here.usage.completion_tokens


def test_the_same_scores(server):
    def body(s):
        s += "The capital of France is" + select("x", [" Paris", " Rome", " a city"])

    here, there = both(server, body, is_chat_model=False)
    assert there["x"] == here["x"]
    ours, theirs = here.get_meta_info("x")["logprobs"], there.get_meta_info("x")["logprobs"]
    assert [len(each) for each in theirs] == [len(each) for each in ours]
    for mine, yours in zip(ours, theirs, strict=True):
        assert yours == pytest.approx(mine, abs=1e-3)


def test_schemas_hold(server):
    with connected(server) as backend:
        state = function(lambda s: s.__iadd__(user("a") + assistant(gen("x", schema=SCHEMA)))).run(backend=backend)
        assert set(state["x"]) == {"n", "ok"}
        assert 0 <= state["x"]["n"] <= 99


def test_select_in_a_chat(server):
    with connected(server) as backend:
        state = function(lambda s: s.__iadd__(user("a") + assistant(select("x", ["yes", "no"])))).run(backend=backend)
        assert state["x"] in ("yes", "no")
        assert json.dumps(state.messages()[1]["content"]) == json.dumps(state["x"])


def test_the_servers_errors_have_their_types(server):
    with connected(server) as backend:
        long = function(lambda s: s.__iadd__(user("a" * CONTEXT * 2) + assistant(gen("x"))))
        assert isinstance(long.run(backend=backend).error(), PromptTooLong)
        bad = function(lambda s: s.__iadd__(user("a") + assistant(gen("x", schema={"type": "nothing"}))))
        assert isinstance(bad.run(backend=backend).error(), ConstraintInvalid)
