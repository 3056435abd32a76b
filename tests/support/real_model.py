"""The real default model, loaded once per test process, and transformers' own as the oracle."""

from __future__ import annotations

from functools import cache
from typing import Any

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


@cache
def oracle_greedy(ids: tuple[int, ...], count: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """(`count` greedy tokens after a prompt, their log-probabilities), as transformers generates them."""
    with torch.no_grad():
        out = oracle().generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=None,
            pad_token_id=0,
        )
    tokens = out.sequences[0, len(ids) :].tolist()
    logprobs = [
        torch.log_softmax(logits[0].float(), -1)[token].item() for logits, token in zip(out.logits, tokens, strict=True)
    ]
    return tuple(tokens), tuple(logprobs)


@cache
def oracle_logprobs(ids: tuple[int, ...]) -> tuple[float, ...]:
    """Log-probability of each token after the first, from one forward pass over all of them."""
    with torch.no_grad():
        logits = oracle()(torch.tensor([ids])).logits[0].float()
    found = torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:]).unsqueeze(1))
    return tuple(found.squeeze(1).tolist())
