"""Programs on the real engine with a tiny random model: forking, streaming and batching change no token."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools

import pytest

from lmprog import Runtime, State, assistant, function, gen, select, system, user
from lmprog.errors import Cancelled, EngineFailed, InvalidArgument, PromptTooLong, UnencodableText
from lmprog.sampling import OF_ONE_CALL
from lmprog_runtime.request import GenerateRequest, SamplingParams
from tests.support.byte_tokenizer import FIRST_BYTE
from tests.support.tiny_engine import ASCII_ONLY, CONTEXT, TOKENIZER, greedy, prompt, run


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


def test_choices_without_the_prompt_are_scored_after_what_texts_begin_with(backend: Runtime) -> None:
    """And the method that needs it picks by the difference."""
    choices = [" yes", " no", " maybe"]

    @function
    def choose(s: State) -> None:
        s += "A prompt, " + select("x", choices, choices_method="unconditional_likelihood_normalized")

    state = choose.run(backend=backend)
    meta, engine = state.get_meta_info("x"), backend._runtime.engine
    wanted = []
    for choice in choices:
        request = GenerateRequest([TOKENIZER.prefix_id, *prompt(choice)], greedy(1, prompt_logprobs_start=1))
        wanted.append([entry.logprob for entry in run(engine, request).prompt_logprobs])
    for found, alone in zip(meta["unconditional_logprobs"], wanted, strict=True):
        assert found == pytest.approx(alone, abs=1e-4)
    pairs = zip(meta["logprobs"], wanted, strict=True)
    gains = [sum(joint) / len(joint) - sum(alone) / len(alone) for joint, alone in pairs]
    assert state["x"] == choices[gains.index(max(gains))]


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


def test_closing_the_runtime_ends_programs_that_run(backend: Runtime) -> None:
    state = straight.run("abc", "def", backend=backend, stream=True)
    backend.close()
    with contextlib.suppress(Cancelled, RuntimeError):
        state["a"]
    late = straight.run("abc", "def", backend=backend)
    with pytest.raises(Cancelled):
        late["a"]


def test_the_language_and_the_runtime_know_the_same_sampling_parameters() -> None:
    """`_runtime_params` passes them on by name."""
    assert set(SamplingParams.__dataclass_fields__) - {"prompt_logprobs_start"} == OF_ONE_CALL


def test_a_warmed_prefix_is_a_hit(backend: Runtime) -> None:
    backend.warm_prefix("a prefix that is known ahead")
    state = straight.run("a prefix that is known ahead", " and more", backend=backend)
    state.sync()
    assert state.usage.cached_tokens == len("a prefix that is known ahead")


def test_a_miss_is_explained_with_its_text(backend: Runtime) -> None:
    backend.warm_prefix("The cat sat on the mat.")
    found = backend.cache.explain("The cat sat under the table.")
    assert (found.reason, found.matched) == ("never seen", len("The cat sat "))
    assert found.texts == (" cat sat"[-7:] + " ", "under th", ("on the m",))
    assert str(found).endswith("After 'cat sat ' the prompt goes on with 'under th'; the cache knows 'on the m' there.")
    backend.flush_cache()
    assert backend.cache.explain("The cat sat under").reason == "evicted"


def test_cache_events_follow_what_is_stored_and_dropped(backend: Runtime) -> None:
    backend.warm_prefix("before")
    with backend.cache.events() as events:
        backend.warm_prefix("hello")
        backend.warm_prefix("hello you")
        stored = events.take()
        backend.flush_cache()
        assert [event.kind for event in events.take()] == ["cleared"]
    backend.warm_prefix("after")
    assert events.take() == []
    assert {event.kind for event in stored} == {"stored"}
    assert "".join(TOKENIZER.decode(event.token_ids) for event in stored) == "hello you"
    hashes = [event.hash for event in stored]
    assert [event.parent for event in stored[1:]] == hashes[:-1]


def test_several_samples_share_one_prefill(backend: Runtime) -> None:
    """n = 3: the prompt is computed once, and each sample is what the same call with its seed gives."""
    prefix = "a rather long prompt for three samples "

    @function
    def samples(s: State) -> None:
        s += prefix + gen("a", n=3, max_tokens=5, temperature=1.0, seed=1, logit_bias=ASCII_ONLY)

    state = samples.run(backend=backend)
    texts = state["a"]
    assert len(texts) == 3
    assert len(set(texts)) > 1
    assert samples.run(backend=backend)["a"] == texts
    assert state.usage.prompt_tokens - state.usage.cached_tokens <= len(prefix) + 2


def test_the_best_of_several_samples_are_kept(backend: Runtime) -> None:
    """best_of keeps those of the very samples that n would give which have the highest mean logprob."""
    sampling = {"max_tokens": 5, "temperature": 1.0, "seed": 1, "logit_bias": ASCII_ONLY}

    @function
    def several(s: State, **kept: int) -> None:
        s += "a" + gen("x", logprobs=True, **kept, **sampling) + "b"

    everything = several.run(n=6, backend=backend)
    ranked = sorted(
        zip(everything.get_meta_info("x")["samples"], everything["x"], strict=True),
        key=lambda sample: -sum(each.logprob for each in sample[0]["logprobs"]) / len(sample[0]["logprobs"]),
    )
    texts = [text for _, text in ranked]
    assert texts != everything["x"]
    one, two = several.run(best_of=6, backend=backend), several.run(n=2, best_of=6, backend=backend)
    assert (one["x"], two["x"]) == (texts[0], texts[:2])
    assert one.text() == two.text() == f"a{texts[0]}b"
    with pytest.raises(InvalidArgument, match=r"best_of \(2\) is below n \(3\)"):
        several.run(n=3, best_of=2, backend=backend)


def test_branches_hold_the_prefix_that_they_will_need(backend: Runtime) -> None:
    """Between fork and first call of a branch, the parent's tokens are locked; afterwards nothing is."""
    stream = backend.open_stream()
    lease, engine = stream._lease, backend._runtime.engine  # type: ignore[attr-defined]
    run(engine, GenerateRequest(prompt("a prefix"), greedy(4), lease=lease))
    locked = engine.call(lambda: engine.cache.tree.leased).result()
    branches = stream.fork(3)
    stream.close()
    assert engine.call(lambda: engine.cache.tree.leased).result() == locked > 0
    for branch in branches:
        branch.close()
    assert engine.call(lambda: (engine.cache.tree.leased, engine.cache.tree.protected)).result() == (0, 0)


def test_guesses_that_came_true_are_reported(backend: Runtime) -> None:
    @function
    def loop(s: State) -> None:
        s += "abcabcabc" + gen("a", max_tokens=30, temperature=0, logit_bias={FIRST_BYTE + 97: 100.0})

    state = loop.run(backend=backend)
    drafts = state.get_meta_info("a")["drafts"]
    assert 0 < drafts["accepted"] <= drafts["verified"]
    assert backend._runtime.statistics()["accepted_tokens"] == drafts["accepted"]


def _eight(backend: Runtime, **sampling: object) -> list[str]:
    @function
    def eight(s: State) -> None:
        s += "once upon a time"
        branches = s.fork(8)
        for branch in branches:
            branch += gen("a", max_tokens=8, logit_bias=ASCII_ONLY, **sampling)  # type: ignore[arg-type]
        s["a"] = [branch["a"] for branch in branches]

    return eight.run(backend=backend)["a"]  # type: ignore[no-any-return]


def test_case_f03_samples_differ_when_they_should_and_repeat_when_they_should(backend: Runtime) -> None:
    assert len(set(_eight(backend, temperature=1.0))) > 1
    seeded = _eight(backend, temperature=1.0, seed=7)
    assert len(set(seeded)) > 1, "the branches of a seeded fork have seeds of their own"
    assert _eight(backend, temperature=1.0, seed=7) == seeded
    with concurrent.futures.ThreadPoolExecutor(4) as others:
        neighbours = [others.submit(_eight, backend, temperature=1.0) for _ in range(3)]
        assert _eight(backend, temperature=1.0, seed=7) == seeded
        for neighbour in neighbours:
            neighbour.result()
    assert len(set(_eight(backend, temperature=0))) == 1
