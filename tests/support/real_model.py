"""The real default model, loaded once per test process, and transformers' own as the oracle."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch

from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hub import resolve_model

MODEL = "smollm2-135m"

PROMPTS = [
    "Here is the English alphabet: ABC",
    "The capital of France is",
    "Once upon a time, in a small village,",
    "def fibonacci(n):\n    ",
    "The chemical symbol for gold is",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three primary colours are",
    "Q: What is 12 + 7?\nA:",
    "In the beginning",
    "import numpy as np\n\n",
    "The mitochondria is",
    "To make a good cup of tea, first",
    "Mon, Tue, Wed,",
    "The opposite of hot is",
    "<html>\n<head>\n",
    "She opened the door and",
    "Water boils at",
    "A haiku about rain:\n",
    "The largest planet in our solar system",
]


@cache
def model_files() -> ModelFiles:
    return resolve_model(MODEL)


@cache
def oracle() -> Any:
    """transformers' model in float32, eager."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_files().directory, dtype=torch.float32).eval()


class Judged(NamedTuple):
    """What transformers makes of a text, from one forward pass. Entry i is about token i + 1."""

    greedy: tuple[int, ...]  # the token that it would have chosen there
    logprobs: tuple[float, ...]  # of the token that is there


@cache
def judge(ids: tuple[int, ...]) -> Judged:
    """By induction, generated tokens that are all greedy ones are what `generate` gives, in a fraction of its time."""
    with torch.no_grad():
        found = torch.log_softmax(oracle()(torch.tensor([ids])).logits[0, :-1].float(), -1)
    own = found.gather(1, torch.tensor(ids[1:]).unsqueeze(1)).squeeze(1)
    return Judged(tuple(found.argmax(-1).tolist()), tuple(own.tolist()))


def oracle_logprobs(ids: tuple[int, ...]) -> tuple[float, ...]:
    """Log-probability of each token after the first."""
    return judge(ids).logprobs
