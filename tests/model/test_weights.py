"""Checkpoints as executors see them: fused, mapped, and refused when they do not fit their config."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmprog_runtime.errors import ModelNotFound, ModelUnsupported
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import ModelWeights, expected_shapes, open_weights
from tests.support.tiny_models import DESCRIBED, TinyModels, save_model


def _open(directory: Path) -> ModelWeights:
    return open_weights(directory, read_spec(directory))


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_tensor_of_a_checkpoint_is_expected(name: str, tiny_models: TinyModels) -> None:
    directory = tiny_models.directory(name)
    stored = load_file(directory / "model.safetensors")
    expected = expected_shapes(read_spec(directory))
    assert {key: tuple(value.shape) for key, value in stored.items()} == expected


def test_projections_are_fused_in_order(tiny_models: TinyModels) -> None:
    weights = _open(tiny_models.directory("llama-bias"))
    stored = load_file(tiny_models.directory("llama-bias") / "model.safetensors")
    prefix = "model.layers.2."
    layer = weights.layer(2)
    parts = [stored[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv"]
    biases = [stored[f"{prefix}mlp.{name}_proj.bias"] for name in ("gate", "up")]
    assert torch.equal(layer.qkv, torch.cat(parts))
    assert layer.gate_up_bias is not None
    assert torch.equal(layer.gate_up_bias, torch.cat(biases))
    assert torch.equal(weights.head(), weights.embedding())


def test_norm_offsets_are_added(tiny_models: TinyModels) -> None:
    stored = load_file(tiny_models.directory("gemma2") / "model.safetensors")
    weights = _open(tiny_models.directory("gemma2"))
    assert torch.equal(weights.final_norm(), stored["model.norm.weight"] + 1)
    post = weights.layer(0).mlp_post_norm
    assert post is not None
    assert torch.equal(post, stored["model.layers.0.post_feedforward_layernorm.weight"] + 1)


def test_shards_are_found_through_the_index(tmp_path: Path, tiny_models: TinyModels) -> None:
    model = tiny_models.model("qwen2")
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    sharded, single = _open(tmp_path), _open(tiny_models.directory("qwen2"))
    assert torch.equal(sharded.layer(3).down, single.layer(3).down)
    assert torch.equal(sharded.head(), single.head())


def test_tensors_are_mapped_not_read(tiny_models: TinyModels) -> None:
    weights = _open(tiny_models.directory("llama"))
    assert weights.embedding().data_ptr() == weights.embedding().data_ptr()


def test_redundant_tensors_are_no_misfit(tmp_path: Path) -> None:
    save_model("qwen3", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    extra = {"lm_head.weight": stored["model.embed_tokens.weight"].clone()}
    save_file({**stored, **extra, "model.rotary_emb.inv_freq": torch.zeros(8)}, file, {"format": "pt"})
    assert torch.equal(_open(tmp_path).head(), stored["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.1.mlp.down_proj.weight": None}, "lacks 'model.layers.1.mlp.down_proj.weight'"),
        ({"model.norm.weight": torch.zeros(3)}, r"'model.norm.weight' has shape \(3,\)"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, "gives no use for"),
    ],
)
def test_a_checkpoint_that_does_not_fit_its_config(
    change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    save_model("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {key: value for key, value in {**load_file(file), **change}.items() if value is not None}
    save_file(stored, file, {"format": "pt"})
    with pytest.raises(ModelUnsupported, match=message):
        _open(tmp_path)


def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(ModelNotFound, match="save_pretrained"):
        _open(tmp_path)


def test_an_index_without_its_shard(tmp_path: Path, tiny_models: TinyModels) -> None:
    tiny_models.model("llama").save_pretrained(tmp_path, max_shard_size="50KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    (tmp_path / index["weight_map"]["model.norm.weight"]).unlink()
    with pytest.raises(ModelNotFound, match="fetch the model again"):
        _open(tmp_path)
