"""A user's GGUF file, from its path to logits: those of its numbers in transformers, and no copy of them on disk."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import Tensor

from lmprog_runtime.errors import ModelNotFound, ModelUnsupported
from lmprog_runtime.model import packed_files
from lmprog_runtime.model.executor import load_executor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.gguf_convert import GgufTensor
from lmprog_runtime.model.gguf_weights import open_gguf_weights
from lmprog_runtime.model.hf import load_model
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.ops.native import available_levels, pack_weights
from tests.support.gguf_files import View, floats_of, write_gguf
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import make_model

native = pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here")
KINDS = ("Q8_0", "Q4_0", "Q4_K", "F16")
TOKENS = [5, 17, 99, 4, 63, 8, 21]
SIZES = {"vocab_size": 259, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4}
DESCRIPTION = {"config.json", "generation_config.json", "lmprog.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_files, "WORTH_KEEPING", 0)
    return tmp_path / "cache"


def _written(directory: Path, kind: str, **fields: Any) -> tuple[ModelFiles, Any]:
    """A file of the kind, and a transformers model with its numbers."""
    model = make_model("llama", **{**SIZES, **fields})
    write_gguf(directory / "m.gguf", "llama", model, gguf.GGMLQuantizationType[kind])
    missing, unexpected = model.load_state_dict(floats_of(directory / "m.gguf", model.config), strict=False)
    assert not unexpected
    assert missing in ([], ["lm_head.weight"])  # which is tied
    return resolve_model(directory / "m.gguf", progress=False), model


def _logits(executor: Any) -> Tensor:
    found: Tensor = executor.step(Packer(16).step([(Stream(), list(TOKENS))]))
    return found


@torch.inference_mode()
def _expected(model: Any) -> Tensor:
    logits: Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


def _kept(cache: Path) -> dict[str, int]:
    """Sizes of all files by name."""
    return {path.name: path.stat().st_size for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("executor", [pytest.param("cpu", marks=native), "torch", "hf"])
def test_in_float32_the_logits_are_those_of_transformers(executor: Any, kind: str, tied: bool, tmp_path: Path) -> None:
    files, model = _written(tmp_path, kind, tie_word_embeddings=tied)
    loaded = load_executor(files, kind=executor, dtype="float32", num_slots=64, threads=1)
    expected = _expected(model)
    assert float((_logits(loaded) - expected).abs().max()) < 1e-5 * float(expected.abs().max())


@native
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_other_types_they_are_those_of_the_numbers_in_safetensors(kind: str, dtype: str, tmp_path: Path) -> None:
    files, model = _written(tmp_path, kind)
    model.save_pretrained(tmp_path / "plain")
    plain = ModelFiles("plain", tmp_path / "plain", "0", 256, None, None)
    found, again, expected = (
        _logits(load_executor(each, kind="cpu", dtype=dtype, num_slots=16, threads=1)) for each in (files, files, plain)
    )
    assert torch.equal(found, expected)
    assert torch.equal(again, expected)  # from the packed weights that were kept


@native
@pytest.mark.parametrize("kind", KINDS[:3])
def test_as_they_are_stored_they_are_near_and_the_next_start_has_them_again(kind: str, tmp_path: Path) -> None:
    """Inputs in 8 bits make the difference."""
    files, model = _written(tmp_path, kind)
    found, expected = _logits(load_executor(files, kind="cpu", device="cpu", num_slots=16, threads=1)), _expected(model)
    assert float((found - expected).norm() / expected.norm()) < 0.05
    again = load_executor(resolve_model(tmp_path / "m.gguf"), kind="cpu", dtype="gguf", num_slots=16, threads=1)
    assert torch.equal(_logits(again), found)


@native
@pytest.mark.parametrize(("kind", "dtype", "bits"), [
    ("Q8_0", "auto", 8.6), ("Q4_0", "auto", 5.1), ("Q4_K", "auto", 5.1), ("F16", "bfloat16", 16.1),
    ("Q4_0", "bfloat16", 16.1),
])  # fmt: skip
def test_only_a_description_and_packed_weights_are_kept(
    kind: str, dtype: str, bits: float, tmp_path: Path, cache: Path
) -> None:
    """`bits` of a weight in the matrices; the embedding has 16 more, as it is kept for its rows too."""
    files, model = _written(tmp_path, kind)
    executor: Any = load_executor(files, kind="cpu", dtype=dtype, device="cpu", num_slots=16, threads=1)
    kept = _kept(cache)
    (packed,) = set(kept) - DESCRIPTION
    assert set(kept) == DESCRIPTION | {packed}
    assert packed.startswith(files.directory.name)
    assert f"-{executor.dtype}-" in packed
    assert sum(kept[name] for name in DESCRIPTION) < 30_000
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    embedding = model.model.embed_tokens.weight.numel()
    head_padding = 64 * SIZES["hidden_size"]
    assert kept[packed] < (matrices - embedding + head_padding) * bits / 8 + embedding * 2 + 40_000


@pytest.mark.parametrize("executor", ["torch", "hf"])
def test_executors_without_packed_weights_keep_a_description_only(executor: Any, tmp_path: Path, cache: Path) -> None:
    files, _ = _written(tmp_path, "Q4_0")
    load_executor(files, kind=executor, dtype="bfloat16", num_slots=64, threads=1)
    assert set(_kept(cache)) == DESCRIPTION


@native
def test_packing_reads_one_matrix_at_a_time(tmp_path: Path) -> None:
    """What the numbers in floats take at most, in the memory of numpy: the parts of one matrix."""
    files, model = _written(tmp_path, "Q8_0", num_hidden_layers=12, vocab_size=300)
    assert files.gguf is not None
    spec = read_spec(files.directory)
    weights = open_gguf_weights(files.gguf, spec, as_stored=False)
    tracemalloc.start()
    pack_weights(spec, weights, "bfloat16")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = 4 * 2 * spec.intermediate_size * spec.hidden_size  # gates and values
    assert sum(4 * parameter.numel() for parameter in model.parameters()) > 15 * largest
    assert peak < 2.5 * largest


def test_a_matrix_is_read_when_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, _ = _written(tmp_path, "Q4_0")
    assert files.gguf is not None
    read: list[str] = []
    floats = GgufTensor.floats
    monkeypatch.setattr(GgufTensor, "floats", lambda tensor: read.append(tensor.name) or floats(tensor))
    layer = open_gguf_weights(files.gguf, read_spec(files.directory), as_stored=False).layer(1)
    assert [name for name in read if "proj" in name] == []
    assert isinstance(layer.gate_up, Tensor)
    assert [name for name in read if "proj" in name] == [
        f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up")
    ]


def test_transformers_refuses_a_file_that_lacks_a_tensor(tmp_path: Path) -> None:
    files, _ = _written(tmp_path, "F16")
    config = files.directory / "config.json"
    config.write_text(config.read_text().replace('"attention_bias": false', '"attention_bias": true'))
    with pytest.raises(ModelUnsupported, match=r"m.gguf lacks 'model.layers.0.self_attn.k_proj.bias'"):
        load_model(files, torch.float32)


def test_the_folder_that_describes_a_file_is_a_model_until_the_file_is_gone(tmp_path: Path) -> None:
    files, _ = _written(tmp_path, "Q8_0")
    again = resolve_model(files.directory, progress=False)
    assert (again.gguf, again.revision, again.is_quantised) == (files.gguf, files.revision, True)
    (tmp_path / "m.gguf").unlink()
    with pytest.raises(ModelNotFound, match="is gone; put it back"):
        resolve_model(files.directory, progress=False)


def test_transformers_refuses_a_file_with_more_than_its_model_has(tmp_path: Path) -> None:
    model = make_model("llama", **SIZES)
    more = {**model.state_dict(), "model.layers.0.self_attn.q_norm.weight": torch.ones(64)}
    write_gguf(tmp_path / "m.gguf", "llama", View(model.config, more))
    files = resolve_model(tmp_path / "m.gguf", progress=False)
    with pytest.raises(ModelUnsupported, match=r"q_norm.*no use for"):
        load_model(files, torch.float32)
