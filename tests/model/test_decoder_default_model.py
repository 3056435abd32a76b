"""Every executor on the real default model against transformers' logits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from lmprog_runtime.model.executor import Executor, load_executor
from tests.support.default_model import default_tokenizer
from tests.support.real_model import model_files, oracle
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import eager_logits

pytestmark = pytest.mark.model

TEXT = (
    "The lighthouse keeper counted the steps again, three hundred and twelve, and wrote the number in his book. "
    "def area(radius: float) -> float:\n    return 3.14159 * radius ** 2\n\n"
    '{"name": "Ada Lovelace", "born": 1815, "fields": ["mathematics", "computing"]}\n'
    "In the morning the fog had lifted; the ships that had waited outside the bay came in one after another. "
)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return default_tokenizer().encode(TEXT)


@pytest.fixture(scope="module")
def expected(tokens: list[int]) -> Tensor:
    """[tokens, vocab] of transformers in float32."""
    return eager_logits(oracle(), tokens)


def _load(kind: str, dtype: str) -> Executor:
    return load_executor(model_files(), kind=kind, dtype=dtype, device="cpu", num_slots=512)  # type: ignore[arg-type]


def _in_chunks(executor: Executor, tokens: list[int]) -> Tensor:
    """An extend, a second one after it, and decodes one by one."""
    packer, stream = Packer(512), Stream()
    cuts = [0, 60, len(tokens) - 4, *range(len(tokens) - 3, len(tokens) + 1)]
    return torch.cat([executor.step(packer.step([(stream, tokens[a:b])])) for a, b in pairwise(cuts)])


@pytest.mark.parametrize("kind", ["cpu", "torch", "hf"])
def test_float32_logits(kind: str, tokens: list[int], expected: Tensor) -> None:
    found = _in_chunks(_load(kind, "float32"), tokens)
    assert float((found - expected).abs().max()) < 1e-3
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def test_bfloat16_is_nearer_to_float32_than_transformers_bfloat16(tokens: list[int], expected: Tensor) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_files().directory, dtype=torch.bfloat16).eval()
    error = _mean_error(expected)
    found = _in_chunks(_load("torch", "bfloat16"), tokens)
    assert error(found) < error(eager_logits(model, tokens).float())


def _mean_error(expected: Tensor) -> Callable[[Tensor], float]:
    return lambda found: float((found - expected).abs().mean())
