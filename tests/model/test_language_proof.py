"""The language on the default model: scores against a reference, and no token computed twice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from lmprog import Runtime, assistant, beam, function, gen, select, system, user
from tests.support.default_model import default_tokenizer
from tests.support.real_model import PROMPTS, oracle

pytestmark = pytest.mark.model
SENTENCES = [
    "The capital of France is Paris, and it lies on the river Seine.",
    "See http://www.example.com/index.html for more.",
    'The value is {"name": "Anna", "age": 31, "tags": ["a", "b"]} in the file.',
    "def add(first, second):\n    return first + second\n",
    "Überraschung! Das kostet 1.234,56 € — günstig, nicht wahr?",
    "I don't know whether it's 3.14159 or 2.71828; they'd tell us.",
    "Unbelievable antidisestablishmentarianism is a characteristically long word.",
    "```python\nprint('hello world')\n```\n\nThat is all.",
]


@pytest.fixture(scope="module")
def backend() -> Iterator[Runtime]:
    with Runtime("smollm2-135m", dtype="float32", max_total_tokens=16384) as runtime:
        yield runtime


@function
def scored(s: Any, prompt: str, choices: list[str]) -> None:
    s += prompt + select("x", choices, logprobs=True)


def pairs(count: int) -> list[tuple[str, list[str]]]:
    """Sentences cut anywhere, so mostly inside a token, with what really follows and what does not."""
    rng, texts = random.Random(4), SENTENCES + PROMPTS
    found: list[tuple[str, list[str]]] = []
    while len(found) < count:
        text, other = rng.sample([each for each in texts if len(each) > 14], 2)
        cut, length = rng.randrange(8, len(text) - 2), rng.randrange(2, 20)
        start = rng.randrange(len(other) - 3)
        choices = [text[cut : cut + length], other[start : start + length]]
        if choices[0] != choices[1]:
            found.append((text[:cut], choices))
    return found


# -- the reference scorer: 20 lines -------------------------------------------------------------------------------


@cache
def ids_of(text: str) -> tuple[int, ...]:
    return tuple(default_tokenizer().encode(text))


def split_of(prompt: str, choices: list[str]) -> int:
    """How many tokens the prompt and all joint texts have in common."""
    joint = [ids_of(prompt), *(ids_of(prompt + choice) for choice in choices)]
    return next((i for i, column in enumerate(zip(*joint, strict=False)) if len(set(column)) > 1), min(map(len, joint)))


def logprobs_of(texts: list[str]) -> dict[str, list[float]]:
    """Of each token of each text but the first, by transformers."""
    found = {}
    for start in range(0, len(texts), 32):
        rows = [torch.tensor(ids_of(text)) for text in texts[start : start + 32]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        with torch.no_grad():
            logprobs = oracle()(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
        of_tokens = logprobs.gather(2, ids[:, 1:, None])[..., 0]
        for text, row, values in zip(texts[start:], rows, of_tokens, strict=False):
            found[text] = values[: len(row) - 1].tolist()
    return found


def test_select_equals_a_scorer_of_joint_texts(backend: Runtime) -> None:
    cases = pairs(200)
    reference = logprobs_of(sorted({p + c for p, choices in cases for c in choices}, key=len))
    inside_a_token = 0
    states = scored.run_batch([{"prompt": p, "choices": c} for p, c in cases], backend=backend)
    for (prompt, choices), state in zip(cases, states, strict=True):
        split = split_of(prompt, choices)
        inside_a_token += split < len(ids_of(prompt))
        expected = [reference[prompt + choice][split - 1 :] for choice in choices]
        found = state.get_meta_info("x")["logprobs"]
        for mine, theirs in zip(found, expected, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-3)
        means = [sum(values) / len(values) for values in expected]
        if abs(means[0] - means[1]) > 1e-3:
            assert state["x"] == choices[means.index(max(means))]
    assert inside_a_token > 60


# -- seams --------------------------------------------------------------------------------------------------------

TURNS = 10


@function(temperature=0)
def chat(s: Any) -> None:
    s += system("You answer in one sentence.")
    for turn in range(TURNS):
        s += user(f"Tell me fact {turn} about the number {turn + 3}.")
        s += assistant(gen(f"a{turn}", max_tokens=12 + turn % 3 * 7))


def test_no_generated_token_is_prefilled_again(backend: Runtime) -> None:
    """Each turn takes from the cache all that the turn before read and wrote. The last token of an answer has never
    been computed: it was sampled, and nothing came after it."""
    backend.flush_cache()
    state = chat.run(backend=backend)
    infos = [state.get_meta_info(f"a{turn}") for turn in range(TURNS)]
    assert sum(len(info["token_ids"]) for info in infos) > TURNS * 5
    for before, after in itertools.pairwise(infos):
        known = before["prompt_tokens"] + len(before["token_ids"])
        assert after["cached_tokens"] >= known - 1
        assert after["prompt_tokens"] > known


# -- beam search --------------------------------------------------------------------------------------------------


@function
def search(s: Any, prompt: str) -> None:
    s += prompt + beam(gen("x", max_tokens=6, ignore_eos=True), width=3)
    s += gen("y", max_tokens=1, temperature=0)


def reference_beam(ids: tuple[int, ...], width: int, length: int) -> tuple[tuple[int, ...], float]:
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    for _ in range(length):
        with torch.no_grad():
            logprobs = oracle()(torch.tensor([ids + more for more, _ in alive])).logits[:, -1].log_softmax(-1)
        best = logprobs.topk(width)
        grown = [
            ((*more, token), sofar + value)
            for (more, sofar), tokens, values in zip(alive, best.indices.tolist(), best.values.tolist(), strict=True)
            for token, value in zip(tokens, values, strict=True)
        ]
        alive = sorted(grown, key=lambda pair: -pair[1])[:width]
    return alive[0]


@pytest.mark.parametrize("prompt", [PROMPTS[1], PROMPTS[5], PROMPTS[17]])
def test_beam_search_is_the_textbooks(backend: Runtime, prompt: str) -> None:
    state = search.run(prompt, backend=backend)
    found, after = state.get_meta_info("x"), state.get_meta_info("y")
    tokens, logprob = reference_beam(ids_of(prompt), 3, 6)
    assert found["token_ids"] == tokens
    assert found["beams"][0]["logprob"] == pytest.approx(logprob, abs=1e-3)
    assert after["prompt_tokens"] == len(ids_of(prompt)) + 6
    assert after["cached_tokens"] >= len(ids_of(prompt)) + 4  # the best's own stream: only its last token is new
    backend.cache.check()


def test_beam_search_after_a_space(backend: Runtime) -> None:
    state = search.run("The capital of France is ", backend=backend)
    assert state.text().startswith("The capital of France is " + state["x"])
    assert state["x"].startswith("Paris")
