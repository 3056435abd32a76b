"""Programs on the real engine with a tiny random model: forking, streaming and batching change no token."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmprog import Runtime, State, assistant, function, gen, select, system, user
from lmprog.errors import Cancelled, EngineFailed, PromptTooLong, UnencodableText
from lmprog.sampling import Sampling
from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.request import SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.byte_tokenizer import CHATML, FIRST_BYTE
from tests.support.tiny_engine import CONTEXT, TINY_VOCAB, TOKENIZER, tiny_directory, tiny_executor


def _backend(**settings: object) -> Runtime:
    files = ModelFiles("tiny", Path(tiny_directory()), "tiny", CONTEXT, CHATML, None)
    config = RuntimeConfig(debug_checks=True, step_tokens=64, max_running=32, **settings)  # type: ignore[arg-type]
    return Runtime.over(LocalRuntime(files, tiny_executor(2048), TOKENIZER, config))


@pytest.fixture
def backend() -> Iterator[Runtime]:
    with _backend() as runtime:
        yield runtime


ASCII_ONLY = {token_id: -100.0 for token_id in range(TINY_VOCAB) if not 32 <= token_id - FIRST_BYTE < 128}
"""Bias that keeps a random model from ending, and from bytes that are no text."""


@function
def straight(s: State, prefix: str, tail: str) -> None:
    s += prefix
    s += tail + gen("a", max_tokens=8, temperature=0, ignore_eos=True)


@function
def forked(s: State, prefix: str, tail: str) -> None:
    s += prefix
    branches = s.fork(3)
    for branch in branches:
        branch += tail + gen("a", max_tokens=8, temperature=0, ignore_eos=True)
    s["a"] = [branch["a"] for branch in branches]


@pytest.mark.parametrize("cut", [0, 3, 9, 12])
def test_forking_changes_no_token_wherever_the_text_is_cut(backend: Runtime, cut: int) -> None:
    text = "http://example.com says "
    wanted = straight.run(text, "", backend=backend)["a"]
    assert forked.run(text[:cut], text[cut:], backend=backend)["a"] == [wanted] * 3


def test_branches_share_the_prefix(backend: Runtime) -> None:
    text = "a rather long prefix that all branches share "
    state = forked.run(text, "and then", backend=backend)
    state.sync()
    usage = state.usage
    assert usage.prompt_tokens == 3 * len(text + "and then")
    assert usage.cached_tokens >= 2 * len(text)


def test_no_generated_token_is_computed_twice(backend: Runtime) -> None:
    """The seam: over a chat, each call computes its new text and the one token that was sampled last, nothing else."""

    @function
    def chat(s: State) -> None:
        s += system("s")
        for number in range(5):
            s += user(f"question {number}")
            s += assistant(gen(f"a{number}", max_tokens=6, temperature=0.9, seed=number, logit_bias=ASCII_ONLY))

    state = chat.run(backend=backend)
    calls = [state.get_meta_info(f"a{number}") for number in range(5)]
    for before, after in itertools.pairwise(calls):
        assert after["cached_tokens"] >= before["prompt_tokens"] + before["completion_tokens"] - 1


def test_streamed_equals_not_streamed(backend: Runtime) -> None:
    whole = straight.run("abc", "def", backend=backend)
    streamed = straight.run("abc", "def", backend=backend, stream=True)
    assert "".join(streamed.text_iter("a")) == whole["a"]
    assert "".join(straight.run("abc", "def", backend=backend, stream=True).text_iter()) == whole.text()


def test_select_scores_are_those_of_the_joint_text(backend: Runtime) -> None:
    @function
    def choose(s: State, prompt: str, choices: list[str]) -> None:
        s += prompt
        s += select("x", choices=choices)

    whole = choose.run("Answer: ", ["Paris", "London"], backend=backend)
    moved = choose.run("Answer:", [" Paris", " London"], backend=backend)
    assert whole["x"].strip() == moved["x"].strip()
    scores = [state.get_meta_info("x")["scores"] for state in (whole, moved)]
    assert len(scores[0]) == 2


def test_errors_of_the_runtime_are_the_language_s_own(backend: Runtime) -> None:
    @function
    def long(s: State) -> None:
        s += "x" * (CONTEXT + 1)
        s += gen("a", max_tokens=4)

    with pytest.raises(PromptTooLong, match=str(CONTEXT)):
        long.run(backend=backend)["a"]

    @function
    def surrogate(s: State) -> None:
        s += "a\ud800b"
        s += gen("a", max_tokens=4)

    with pytest.raises(UnencodableText, match="D800"):
        surrogate.run(backend=backend)["a"]


def test_a_crash_of_the_model_reaches_the_reader_with_its_cause(backend: Runtime) -> None:
    executor = backend._runtime.executor
    executor.step = lambda batch: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(EngineFailed, match="division") as caught:
        straight.run("abc", "def", backend=backend)["a"]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_closing_the_runtime_ends_programs_that_run() -> None:
    backend = _backend()
    state = straight.run("abc", "def", backend=backend, stream=True)
    backend.close()
    with contextlib.suppress(Cancelled, RuntimeError):
        state["a"]
    late = straight.run("abc", "def", backend=backend)
    with pytest.raises(Cancelled):
        late["a"]


def test_the_language_and_the_runtime_know_the_same_sampling_parameters() -> None:
    """`_runtime_params` passes them on by name."""
    ours = set(Sampling.__dataclass_fields__) - {"n"}
    theirs = set(SamplingParams.__dataclass_fields__) - {"prompt_logprobs_start"}
    assert ours == theirs


def test_a_warmed_prefix_is_a_hit(backend: Runtime) -> None:
    backend.warm_prefix("a prefix that is known ahead")
    state = straight.run("a prefix that is known ahead", " and more", backend=backend)
    state.sync()
    assert state.usage.cached_tokens == len("a prefix that is known ahead")
