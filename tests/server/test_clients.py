"""Other people's clients against the server. Each is skipped where it is not installed."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import pytest
import torch
from pydantic import BaseModel
from torch import Tensor

from tests.support.byte_tokenizer import VOCAB
from tests.support.tiny_engine import TOKENIZER
from tests.support.tiny_server import ASCII_ONLY, Served, serving, tiny_reference, tiny_runtime

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs are not ours to mend

USER: Any = [{"role": "user", "content": "hello"}]


class Light(BaseModel):
    room: Literal["kitchen", "hall"]
    on: bool


def _needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@_needs("instructor")
@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(server: Served, mode: str) -> None:
    import instructor

    client = instructor.from_openai(server.openai, mode=instructor.Mode[mode])
    light = client.chat.completions.create(
        model="tiny", messages=USER, response_model=Light, max_tokens=200, temperature=0, max_retries=1
    )
    assert isinstance(light, Light)


@_needs("litellm")
def test_litellm(server: Served) -> None:
    import litellm

    given: Any = {"model": "openai/tiny", "api_base": f"{server.url}/v1", "api_key": "none", "messages": USER}
    given |= {"max_tokens": 8, "temperature": 0, "logit_bias": ASCII_ONLY}
    whole = litellm.completion(**given)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    assert "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **given)) == text


@_needs("langchain_openai")
def test_langchain(server: Served) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=80, logit_bias=ASCII_ONLY
    )
    text = model.invoke("hello").content
    assert text
    assert "".join(str(chunk.content) for chunk in model.stream("hello")) == text
    free = ChatOpenAI(model="tiny", base_url=f"{server.url}/v1", api_key="none", max_tokens=80)
    for method in ("json_schema", "function_calling"):
        assert isinstance(free.with_structured_output(Light, method=method).invoke("hello"), Light)


@_needs("dspy")
def test_dspy(server: Served) -> None:
    import dspy

    model = dspy.LM(
        "openai/tiny",
        api_base=f"{server.url}/v1",
        api_key="none",
        max_tokens=60,
        cache=False,
        temperature=0,
        logit_bias=ASCII_ONLY,
    )
    assert model("hello")[0]
    forced = dspy.LM(
        "openai/tiny",
        api_base=f"{server.url}/v1",
        api_key="none",
        max_tokens=80,
        cache=False,
        extra_body={"json_schema": Light.model_json_schema()},
    )
    with dspy.context(lm=forced, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict(Switch)(wish="make it bright")
    assert answer.room in {"kitchen", "hall"}
    assert isinstance(answer.on, bool)


if find_spec("dspy") is not None:
    import dspy

    class Switch(dspy.Signature):
        """Which light to switch."""

        wish: str = dspy.InputField()
        room: Literal["kitchen", "hall"] = dspy.OutputField()
        on: bool = dspy.OutputField()


@_needs("lm_eval")
def test_lm_eval_local_completions(server: Served) -> None:
    """Log-likelihoods over token ids, as its multiple-choice tasks ask for them."""
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(
        model="tiny", base_url=f"{server.url}/v1/completions", tokenizer_backend=None, tokenized_requests=False,
        num_concurrent=1, max_retries=1, batch_size=4, max_length=2000,
    )  # fmt: skip
    model.tokenized_requests = True
    model.tokenizer = object()  # the ids are made here; it only asks whether it has one
    items = list(_continuations())
    found = model._loglikelihood_tokens([(("", ""), context, continuation) for context, continuation in items])
    expected = [_log_likelihood(*item) for item in items]
    assert [total for total, _ in found] == pytest.approx([total for total, _ in expected], abs=1e-3)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]


def _continuations() -> Iterator[tuple[list[int], list[int]]]:
    """A context, and what follows it: what the model is surest of, that with another end, and a word."""
    for text in ("The sky is", "Two and two make"):
        context, best = TOKENIZER.encode(text), []
        for _ in range(3):
            best.append(int(_next_logprobs(context + best)[-1].argmax()))
        for continuation in (best, best[:-1] + TOKENIZER.encode("!"), TOKENIZER.encode(" blue")):
            yield context, continuation


def _log_likelihood(context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """By transformers: of the continuation, and whether each of its tokens is the likeliest."""
    logprobs = _next_logprobs(context + continuation)[len(context) - 1 : -1]
    total = sum(float(row[token]) for row, token in zip(logprobs, continuation, strict=True))
    return total, logprobs.argmax(-1).tolist() == continuation


def _next_logprobs(ids: list[int]) -> Tensor:
    """[tokens, VOCAB] by transformers, in float32. Its columns beyond the tokenizer's have no part in them."""
    with torch.no_grad():
        logits: Tensor = tiny_reference()(torch.tensor([ids])).logits[0, :, :VOCAB]
    return logits.log_softmax(-1)


@_needs("lm_eval")
def test_lm_eval_local_completions_generate_until_a_stop(server: Served) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model = LocalCompletionsAPI(
        model="tiny", base_url=f"{server.url}/v1/completions", tokenizer_backend=None, tokenized_requests=False,
        num_concurrent=1, max_retries=1, batch_size=1, max_length=2000,
    )  # fmt: skip
    prompt = "The sky is"
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 24, "logit_bias": ASCII_ONLY}
    text = server.ok("/v1/completions", **body)["choices"][0]["text"]
    stop = text[9:11]
    for until, expected in ((["\n\n"], text), ([stop, "\n"], text[: text.index(stop)])):
        wanted = {"until": until, "max_gen_toks": 24, "logit_bias": ASCII_ONLY}
        instance = Instance("generate_until", {}, (prompt, wanted), 0)
        assert model.generate_until([instance], disable_tqdm=True) == [expected]


@_needs("lm_eval")
def test_lm_eval_local_chat_completions(server: Served) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalChatCompletion

    model = LocalChatCompletion(
        model="tiny", base_url=f"{server.url}/v1/chat/completions", num_concurrent=1, max_retries=1,
        tokenizer_backend=None, tokenized_requests=False,
    )  # fmt: skip
    message = model.apply_chat_template([{"role": "user", "content": "hello"}])
    instance = Instance("generate_until", {}, (message, {"until": ["\n\n"], "max_gen_toks": 8}), 0)
    assert isinstance(model.generate_until([instance], disable_tqdm=True)[0], str)


@_needs("opentelemetry")
def test_opentelemetry_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    http = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from lmprog_runtime.server.guard import Finished
    from lmprog_runtime.server.tracing import exporter

    spans: list[Any] = []
    monkeypatch.setattr(http.OTLPSpanExporter, "export", lambda _, batch: spans.extend(batch))
    monkeypatch.setattr(export, "BatchSpanProcessor", export.SimpleSpanProcessor)  # sends at once
    watch = exporter("http://127.0.0.1:9/v1/traces", "tiny")
    watch(Finished("me", "POST", "/generate", 200, 0.25, {"prompt_tokens": 5, "cached_tokens": 3}))
    trace = "0af7651916cd43dd8448eb211c80319c"
    marks = [("first step", 0.05), ("first token", 0.1)]
    watch(Finished("me", "POST", "/generate", 200, 0.25, {}, marks, f"00-{trace}-b7ad6b7169203331-01"))
    span, inner = spans
    assert format(inner.context.trace_id, "032x") == trace
    assert [(e.name, round((e.timestamp - inner.start_time) / 1e9, 3)) for e in inner.events] == marks
    assert span.parent is None
    assert span.name == "POST /generate"
    assert span.end_time - span.start_time == pytest.approx(0.25e9, rel=1e-6)
    assert dict(span.attributes)["gen_ai.usage.input_tokens"] == 5


@_needs("schemathesis")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_schemathesis_finds_no_server_error(seed: int) -> None:
    with serving(tiny_runtime(context_length=64)) as server:
        command = [
            sys.executable,
            "-c",
            "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())",
        ]
        command += ["run", f"{server.url}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "15"]
        command += ["--phases", "examples,coverage,fuzzing,stateful", "--seed", str(seed)]
        command += ["--request-timeout", "30", "--no-color"]
        out = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert out.returncode == 0, out.stdout[-4000:] + out.stderr[-1000:]
        server.state.streams._seconds = -1.0  # those that it opened are swept away
        server.comes_to_rest(30)
