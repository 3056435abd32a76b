"""Guesses on the default model: fewer steps where text repeats itself, and the same tokens."""

from __future__ import annotations

import pytest

from lmprog_runtime.request import Constraint, GenerateRequest, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from tests.support.real_model import model_files
from tests.support.tiny_engine import run

LIST = "Planets: Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune.\n"
REQUESTS = (
    (LIST * 2 + "Planets:", SamplingParams(max_tokens=20, temperature=0.0), None),
    (LIST * 2 + "Planets:", SamplingParams(max_tokens=20, temperature=0.8, seed=3), None),
    ("A moon:", SamplingParams(max_tokens=24, temperature=0.0), Constraint("regex", r'\{"name": "[A-Z][a-z]{2,8}"\}')),
)


@pytest.mark.model
def test_outputs_of_the_default_model_are_those_without_guesses() -> None:
    model_files()  # skips where the model cannot be had
    outputs, steps = [], []
    for speculation in (False, True):
        runtime = LocalRuntime.start(dtype="float32", max_total_tokens=1024, speculation=speculation)
        done = [
            run(runtime.engine, GenerateRequest(runtime.tokenizer.encode(text), params, constraint=constraint))
            for text, params, constraint in REQUESTS
        ]
        outputs.append([completion.token_ids for completion in done])
        steps.append(runtime.engine.steps)
        runtime.close()
    assert outputs[0] == outputs[1]
    assert steps[1] < 0.7 * steps[0]
