"""Whole models on the CPU executor: against transformers in float32, and bit by bit against itself."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lmprog_runtime.cache.kv_codec import codec_for
from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.ops.native import NATIVE_DTYPES, available_levels
from tests.support.attention_oracle import int8_rows
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import DESCRIBED, VOCAB, save_model

LEVELS = available_levels()
NUM_SLOTS = 1200
INT8_KV = "+int8kv"  # behind a dtype: the pool in int8
ALL_DTYPES = (*NATIVE_DTYPES, *(f"{dtype}{INT8_KV}" for dtype in ("float32", "bfloat16", "int8")))


@functools.cache
def _model(name: str) -> tuple[Path, torch.nn.Module]:
    directory = Path(tempfile.mkdtemp())
    return directory, save_model(name, directory)


@functools.cache
def _executor(name: str, dtype: str, level: str | None = None, threads: int = 1) -> CpuExecutor:
    directory, _ = _model(name)
    spec = read_spec(directory)
    weights = open_weights(directory, spec)
    plain, has_int8_kv = dtype.removesuffix(INT8_KV), dtype.endswith(INT8_KV)
    return CpuExecutor(
        spec, weights, num_slots=NUM_SLOTS, dtype=plain, threads=threads, int8_kv=has_int8_kv, level=level
    )


def _tokens(count: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCAB, count)]


@torch.inference_mode()
def _expected(name: str, tokens: list[int]) -> Tensor:
    return _model(name)[1](torch.tensor([tokens])).logits[0]


def _run(executor: CpuExecutor, *pieces: list[int]) -> Tensor:
    """Logits of all tokens of one request that is computed piece by piece."""
    packer, stream = Packer(NUM_SLOTS), Stream()
    return torch.cat([executor.step(packer.step([(stream, piece)])) for piece in pieces])


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_family_agrees_with_transformers(name: str) -> None:
    tokens = _tokens(40)
    expected = _expected(name, tokens)
    executor = _executor(name, "float32")
    assert (_run(executor, tokens) - expected).abs().max() < 1e-4
    assert (_run(executor, tokens[:17], tokens[17:39], tokens[39:]) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["llama-odd-sizes", "gemma3", "phi3"])
def test_every_instruction_set(name: str, level: str) -> None:
    tokens = _tokens(40)
    expected = _expected(name, tokens)
    assert (_run(_executor(name, "float32", level), tokens) - expected).abs().max() < 1e-4
    bounds = {"bfloat16": 0.05, "int8": 0.05, "int4": 0.5, "float32+int8kv": 0.05, "bfloat16+int8kv": 0.05}
    for dtype, bound in bounds.items():
        error = (_run(_executor(name, dtype, level), tokens) - expected).abs()
        assert error.max() < bound * expected.abs().max()


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2-window", "gemma2"])
@pytest.mark.parametrize("level", LEVELS)
def test_logits_have_the_same_bits_however_the_work_is_cut(name: str, dtype: str, level: str) -> None:
    executor = _executor(name, dtype, level)
    tokens = _tokens(240)
    cold = _run(executor, tokens)
    assert torch.equal(_run(executor, tokens[:100], tokens[100:]), cold)
    assert torch.equal(_run(executor, tokens[:230], *([token] for token in tokens[230:])), cold)
    assert torch.equal(_run(_executor(name, dtype, level, threads=2), tokens), cold)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2-window"])
def test_forks_and_batches_have_the_bits_of_single_runs(name: str, dtype: str) -> None:
    executor, packer = _executor(name, dtype), Packer(NUM_SLOTS)
    prefix, tails = _tokens(150), [_tokens(count, seed=count) for count in (1, 5, 9, 40)]
    trunk = Stream()
    executor.step(packer.step([(trunk, prefix)]))
    for shared in (0, 64, 150):
        batch = packer.step([(trunk.fork(), list(tail)) for tail in tails], shared=shared)
        rows = executor.step(batch).split([len(tail) for tail in tails])
        for tail, got in zip(tails, rows, strict=True):
            assert torch.equal(got, _run(executor, prefix + tail)[len(prefix) :])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16+int8kv"])
def test_a_trie_has_the_bits_of_its_paths(dtype: str) -> None:
    executor, packer = _executor("llama", dtype), Packer(NUM_SLOTS)
    prefix, trunk = _tokens(70), Stream()
    executor.step(packer.step([(trunk, prefix)]))
    tokens, parents = [5, 6, 7, 8, 9, 10], [-1, 0, 0, 2, -1, 4]
    logits = executor.step(packer.trie(trunk, tokens, parents))
    for path in ([0, 1], [0, 2, 3], [4, 5]):
        expected = _run(executor, prefix + [tokens[node] for node in path])[len(prefix) :]
        assert torch.equal(logits[path], expected)


def test_only_the_wanted_rows_are_returned() -> None:
    executor, tokens = _executor("llama", "float32"), _tokens(30)
    packer = Packer(NUM_SLOTS)
    everything = _run(executor, tokens)
    logits = executor.step(packer.step([(Stream(), list(tokens))], logit_rows=[3, 29]))
    assert torch.equal(logits, everything[[3, 29]])
    none = executor.step(packer.step([(Stream(), list(tokens))], logit_rows=[]))
    assert none.shape == (0, VOCAB)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("name", ["llama-three-kv-heads", "qwen2-window"])
@pytest.mark.parametrize("level", LEVELS)
def test_many_requests_in_one_step_have_the_bits_of_each_alone(name: str, dtype: str, level: str) -> None:
    """One new token each, so that products fetch the keys, which lie in order; then three, so that threads split."""
    rng = np.random.default_rng(0)
    prompts = [_tokens(int(rng.integers(1, 60)), seed=seed) for seed in range(28)]
    tails = [[_tokens(1, seed=seed), _tokens(3, seed=seed + 50)] for seed in range(28)]
    executor = _executor(name, dtype, level)
    alone = [_run(executor, prompt, *tail)[len(prompt) :] for prompt, tail in zip(prompts, tails, strict=True)]
    for threads in (1, 2, 3):
        executor, streams = _executor(name, dtype, level, threads=threads), [Stream() for _ in prompts]
        packer = Packer(NUM_SLOTS, in_order=True)
        executor.step(packer.step(list(zip(streams, map(list, prompts), strict=True))))
        for part, tokens_each in ((0, 1), (1, 3)):
            work = [(stream, list(tail[part])) for stream, tail in zip(streams, tails, strict=True)]
            got = executor.step(packer.step(work)).split(tokens_each)
            expected = [logits.split([1, 3])[part] for logits in alone]
            assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("dtype", ["bfloat16", "bfloat16+int8kv"])
@pytest.mark.parametrize("seed", range(12))
def test_steps_of_any_shape_have_the_same_bits_on_any_number_of_threads(seed: int, dtype: str) -> None:
    """Three heads of keys for two threads, so that work is shared out unevenly; parts that pass a chunk of 256 keys."""
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(0, 300)), int(rng.integers(1, 150))) for _ in range(int(rng.integers(1, 4)))]
    results = []
    for threads in (1, 2, 3):
        executor = _executor("llama-three-kv-heads", dtype, threads=threads)
        executor.write_kv(
            np.arange(NUM_SLOTS, dtype=np.int32), np.full((NUM_SLOTS, _kv_bytes(executor)), 255, np.uint8)
        )
        packer, streams = Packer(NUM_SLOTS), [Stream() for _ in shapes]
        if cached := [(stream, _tokens(old)) for stream, (old, _) in zip(streams, shapes, strict=True) if old]:
            executor.step(packer.step(cached))
        work = [(stream, _tokens(new, seed=1)) for stream, (_, new) in zip(streams, shapes, strict=True)]
        results.append(executor.step(packer.step(work)).clone())
    assert torch.isfinite(results[0]).all()
    assert torch.equal(results[1], results[0])
    assert torch.equal(results[2], results[0])


def _kv_bytes(executor: CpuExecutor) -> int:
    return executor.read_kv(np.zeros(1, np.int32)).shape[1]


@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
def test_kv_of_any_weights_can_be_compressed(dtype: str) -> None:
    executor, packer, stream = _executor("llama", dtype), Packer(NUM_SLOTS), Stream()
    executor.step(packer.step([(stream, _tokens(20))]))
    rows = executor.read_kv(np.array(stream.slots, np.int32))
    half = codec_for("bfloat16", executor.kv_dtype)
    kept = half.decode(half.encode(rows), len(rows))
    exact, rounded = (
        torch.from_numpy(each.copy()).view(getattr(torch, executor.kv_dtype)).float() for each in (rows, kept)
    )
    assert torch.allclose(exact, rounded, rtol=2**-8, atol=1e-6)
    assert len(half.encode(rows)) == exact.numel() * 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16+int8kv"])
def test_kv_can_be_moved_to_other_slots(dtype: str) -> None:
    executor, packer, tokens = _executor("llama", dtype), Packer(NUM_SLOTS), _tokens(20)
    stream = Stream()
    executor.step(packer.step([(stream, tokens[:19])]))
    expected = executor.step(packer.step([(stream.fork(), tokens[19:])]))
    moved = Stream(stream.tokens, packer.take(19))
    executor.write_kv(np.array(moved.slots, np.int32), executor.read_kv(np.array(stream.slots, np.int32)))
    executor.write_kv(
        np.array(stream.slots, np.int32), np.zeros_like(executor.read_kv(np.array(stream.slots, np.int32)))
    )
    assert torch.equal(executor.step(packer.step([(moved, tokens[19:])])), expected)


@pytest.mark.parametrize("level", LEVELS)
def test_int8_rows_hold_each_head_to_half_a_step_of_its_own_scale(level: str) -> None:
    """Of the first layer, whose K and V do not depend on attention; all its heads and scales, and the padding."""
    name, tokens = "llama-three-kv-heads", _tokens(20)
    rows = {}
    for dtype in ("float32", "float32+int8kv"):
        executor, packer, stream = _executor(name, dtype, level), Packer(NUM_SLOTS), Stream()
        executor.step(packer.step([(stream, tokens)]))
        rows[dtype] = torch.from_numpy(executor.decoder.kv[0][stream.slots])
    exact = rows["float32"].view(torch.float32).view(20, 2, 3, 32)
    expected, kept = int8_rows(exact), rows["float32+int8kv"].view(torch.int8)
    codes = 2 * 3 * 32
    assert kept.shape == expected.shape == (20, 256)
    assert (kept[:, :codes].int() - expected[:, :codes].int()).abs().max() <= 1  # ties
    assert (kept[:, :codes] == expected[:, :codes]).float().mean() > 0.99
    scales = [each[:, codes : codes + 24].contiguous().view(torch.float32) for each in (kept, expected)]
    assert torch.allclose(*scales, rtol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_what_is_no_number_stays_none_in_every_type(dtype: str, level: str) -> None:
    """A model that overflows is told by its logits, also those of later tokens, which read it from the pool."""
    executor = _executor.__wrapped__("llama", dtype, level)
    executor.packed.embedding[7] = torch.nan
    logits = _run(executor, [7, 9], [11])
    assert not torch.isfinite(logits).any()


def test_an_int8_pool_is_compressed_no_further() -> None:
    with pytest.raises(ValueError, match="int8 cannot be compressed with 'bfloat16'; use 'raw'"):
        codec_for("bfloat16", _executor("llama", "bfloat16+int8kv").kv_dtype)


def test_two_keys_at_one_position_are_refused() -> None:
    executor, packer = _executor("llama", "float32"), Packer(NUM_SLOTS)
    batch = packer.step([(Stream(), _tokens(4))])
    twice = batch.plan._replace(items=np.concatenate([batch.plan.items, batch.plan.items]))
    with pytest.raises(ValueError, match="two keys at one position"):
        executor.step(batch._replace(plan=twice))


def test_an_unknown_dtype_is_refused() -> None:
    directory, _ = _model("llama")
    spec = read_spec(directory)
    with pytest.raises(ModelUnsupported, match="float8"):
        CpuExecutor(spec, open_weights(directory, spec), num_slots=8, dtype="float8")
