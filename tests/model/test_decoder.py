"""The torch executor against transformers' eager models, in float32, over every way of packing the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmprog_runtime.model.decoder import TorchExecutor
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_weights
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import DESCRIBED, TinyModels, eager_logits

SLOTS = 160
EXACT = 1e-5


def make_executor(models: TinyModels, name: str, dtype: str = "float32") -> TorchExecutor:
    directory = models.directory(name)
    spec = read_spec(directory)
    return TorchExecutor(spec, open_weights(directory, spec), num_slots=SLOTS, dtype=dtype)


def random_tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 128, count).tolist()


def error(found: Tensor, *expected: Tensor) -> float:
    return float((found - torch.cat(expected)).abs().max())


@pytest.mark.parametrize("name", DESCRIBED)
def test_packed_chunked_mixed_and_forked_steps_equal_transformers(name: str, tiny_models: TinyModels) -> None:
    executor, packer = make_executor(tiny_models, name), Packer(SLOTS)
    one, two = random_tokens(40, 1), random_tokens(25, 2)
    branch = one[:20] + random_tokens(12, 3)
    logits = [tiny_models.logits(name, tokens) for tokens in (one, two, branch)]
    a, b = Stream(), Stream()
    assert error(executor.step(packer.step([(a, one[:20]), (b, two[:10])])), logits[0][:20], logits[1][:10]) < EXACT
    c = a.fork()
    assert (
        error(executor.step(packer.step([(a, one[20:26]), (b, two[10:11])])), logits[0][20:26], logits[1][10:11])
        < EXACT
    )
    shared = packer.step([(c, branch[20:25]), (a, one[26:27])], shared=20)
    assert error(executor.step(shared), logits[2][20:25], logits[0][26:27]) < EXACT
    decodes = packer.step([(b, two[11:12]), (a, one[27:28]), (c, branch[25:26])])
    assert error(executor.step(decodes), logits[1][11:12], logits[0][27:28], logits[2][25:26]) < EXACT
    assert error(executor.step(packer.step([(a, one[28:40])])), logits[0][28:40]) < EXACT


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2-window"])
def test_a_token_trie_equals_its_paths_one_by_one(name: str, tiny_models: TinyModels) -> None:
    executor, packer, prefix = make_executor(tiny_models, name), Packer(SLOTS), Stream()
    context, tokens, parents = random_tokens(15, 4), [5, 6, 7, 8, 9, 10], [-1, 0, 1, 0, -1, 4]
    executor.step(packer.step([(prefix, context)]))
    found = executor.step(packer.trie(prefix, tokens, parents))
    for node in range(len(tokens)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        expected = tiny_models.logits(name, context + [tokens[n] for n in path])[-1:]
        assert error(found[node : node + 1], expected) < EXACT


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_any_cut_into_chunks_gives_the_same(cuts: list[int], seed: int) -> None:
    executor, packer, stream = _module_executor(), Packer(SLOTS, seed), Stream()
    tokens = random_tokens(sum(cuts), seed)
    found, start = [], 0
    for size in cuts:
        found.append(executor.step(packer.step([(stream, tokens[start : start + size])])))
        start += size
    assert error(torch.cat(found), eager_logits(_MODEL["model"], tokens)) < EXACT


_MODEL: dict[str, object] = {}


@pytest.fixture(autouse=True, scope="module")
def _llama(tiny_models: TinyModels) -> None:
    """Hypothesis reruns a test's body without its fixtures, so the model is kept here."""
    _MODEL["model"], _MODEL["executor"] = tiny_models.model("mistral"), make_executor(tiny_models, "mistral")


def _module_executor() -> TorchExecutor:
    executor = _MODEL["executor"]
    assert isinstance(executor, TorchExecutor)
    return executor


def test_only_the_rows_asked_for_come_back_in_order(tiny_models: TinyModels) -> None:
    executor, packer = make_executor(tiny_models, "llama"), Packer(SLOTS)
    tokens = random_tokens(9, 5)
    found = executor.step(packer.step([(Stream(), tokens)], logit_rows=[2, 8]))
    assert found.shape == (2, executor.vocab_size)
    assert found.dtype == torch.float32
    assert error(found, tiny_models.logits("llama", tokens)[[2, 8]]) < EXACT


def test_a_step_that_wants_no_logits(tiny_models: TinyModels) -> None:
    executor = make_executor(tiny_models, "llama")
    assert executor.step(Packer(SLOTS).step([(Stream(), [5, 6])], logit_rows=[])).shape == (0, executor.vocab_size)


def test_kv_can_move_to_other_slots_and_to_another_executor(tiny_models: TinyModels) -> None:
    tokens, packer, stream = random_tokens(20, 6), Packer(SLOTS), Stream()
    source, target = make_executor(tiny_models, "qwen3"), make_executor(tiny_models, "qwen3")
    source.step(packer.step([(stream, tokens[:19])]))
    raw = source.read_kv(np.array(stream.slots, np.int32))
    moved = Stream(list(stream.tokens), packer.take(19))
    target.write_kv(np.array(moved.slots, np.int32), raw)
    found = target.step(packer.step([(moved, tokens[19:])]))
    assert error(found, tiny_models.logits("qwen3", tokens)[19:]) < EXACT
    assert np.array_equal(target.read_kv(np.array(moved.slots[:19], np.int32)), raw)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_16_bit_types_stay_near_float32(name: str, dtype: str, tiny_models: TinyModels) -> None:
    """Nearer than transformers itself, which also rounds the residual stream, the softmax and the logits."""
    executor, tokens = make_executor(tiny_models, name, dtype), random_tokens(30, 7)
    exact = tiny_models.logits(name, tokens)
    found = executor.step(Packer(SLOTS).step([(Stream(), tokens)]))
    assert found.dtype == torch.float32
    assert error(found, exact) < {"bfloat16": 0.06, "float16": 0.008}[dtype] * float(exact.abs().max())
    assert found.unique().numel() > found.numel() // 2  # logits are not rounded to 16 bits


def test_the_pool_holds_the_dtype(tiny_models: TinyModels) -> None:
    pool = make_executor(tiny_models, "llama", "bfloat16").pool
    assert pool.data.shape == (4, SLOTS, 2, 2, 16)
    assert pool.bytes_per_slot == 4 * 2 * 2 * 16 * 2
