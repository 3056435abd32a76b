"""What a dtype costs in quality on a text, against float32. `scripts/quality.py` measures 20,000 tokens."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lmprog_runtime.model.executor import load_executor
from lmprog_runtime.model.plain_batch import Part, plain_batch
from lmprog_runtime.ops.native import available_levels
from tests.support.default_model import default_tokenizer
from tests.support.real_model import model_files

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here"),
]
TEXT = Path(__file__).parents[2] / "LICENSE"
COUNT = 384  # tokens
# (perplexity over that of float32, mean divergence in nats); measured over 20,000 tokens: 1.000 and 0.0001 in bfloat16,
# 1.004 and 0.0037 in int8, 1.002 and 0.0027 in both kinds of 4 bits
BARS = {"bfloat16": (1.005, 0.0006), "int8": (1.02, 0.01), "int4": (1.02, 0.01), "gguf": (1.02, 0.01)}


@cache
def _tokens() -> list[int]:
    return default_tokenizer().encode(TEXT.read_text())[:COUNT]


@cache
def _log_probabilities(dtype: str) -> Tensor:
    """[COUNT - 1, vocab]"""
    executor = load_executor(model_files(), kind="cpu", dtype=dtype, num_slots=COUNT)
    batch = plain_batch([Part(np.array(_tokens(), np.int32), np.arange(COUNT, dtype=np.int32))])
    return executor.step(batch)[:-1].log_softmax(-1)


def _perplexity(log_probabilities: Tensor) -> float:
    own = log_probabilities.gather(1, torch.tensor(_tokens()[1:]).unsqueeze(1))
    return math.exp(-own.mean().item())


@pytest.mark.parametrize("dtype", BARS)
def test_a_dtype_stays_near_float32(dtype: str) -> None:
    if dtype == "gguf" and model_files().gguf is None:
        pytest.skip("the default model is here from the Hub, without its GGUF file")
    reference, found = _log_probabilities("float32"), _log_probabilities(dtype)
    most_perplexity, most_divergence = BARS[dtype]
    assert _perplexity(found) < most_perplexity * _perplexity(reference)
    assert float((reference.exp() * (reference - found)).sum(-1).mean()) < most_divergence
