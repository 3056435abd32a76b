"""Configs to specs: every field is used, known to be without effect, or refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.model_spec import FAMILIES, make_spec, read_spec
from lmprog_runtime.model.rope import RopeFrame, make_rope
from tests.support.tiny_models import DESCRIBED, TinyModels

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}


def test_the_table_is_tried_in_full() -> None:
    assert {family for family, _ in DESCRIBED.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", DESCRIBED)
def test_ropes_are_those_of_transformers(name: str, tiny_models: TinyModels) -> None:
    """Bit for bit: an error of one unit in the last place grows with the position."""
    spec = read_spec(tiny_models.directory(name))
    model = tiny_models.model(name)
    embeddings = [module for module in model.modules() if type(module).__name__.endswith("RotaryEmbedding")]
    buffers = {k: v for k, v in embeddings[0].named_buffers() if "original" not in k}
    expected = {tuple(value.tolist()) for value in buffers.values()}
    assert {rope.inverse_frequencies for rope in spec.ropes} == expected


def test_fields_that_a_config_leaves_out_mean_what_transformers_takes() -> None:
    for family in FAMILIES:
        short = {**LLAMA, "model_type": family}
        full = json.loads(AutoConfig.for_model(**short).to_json_string(use_diff=False))
        spec = make_spec(short)
        assert spec.context_length == full["max_position_embeddings"]
        assert spec.head_dim == full.get("head_dim") or 16
        assert spec.tied_head == full["tie_word_embeddings"]
        assert spec.norm_eps == full["rms_norm_eps"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"hidden_act": "relu2"}, "relu2"),
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "spiral"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "sections": [1]}}, "sections"),
        ({"vocab_size": None}, "vocab_size"),
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "1 layer types for 4 layers"),
        ({"model_type": "qwen2", "use_mrope": True}, "use_mrope"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ModelUnsupported, match=named):
        make_spec({**LLAMA, **change})


def test_old_and_new_rope_fields_mean_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}}
    new = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}}
    assert make_spec({**LLAMA, **old}) == make_spec({**LLAMA, **new})


def test_old_gemma3_configs_have_two_ropes() -> None:
    config = {**LLAMA, "model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    spec = make_spec({**config, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 2})
    full, sliding = spec.ropes
    assert spec.layer_ropes == (1, 0, 1, 0)
    assert full.inverse_frequencies[0] == 1 / 8
    assert sliding.inverse_frequencies[0] == 1.0


def test_early_phi3_names_of_longrope() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    spec = make_spec({**LLAMA, "model_type": "phi3", "max_position_embeddings": 16384, "rope_scaling": scaling})
    assert spec.context_length == 4096
    assert spec.ropes[0].scale == pytest.approx(math.sqrt(1 + math.log(4) / math.log(4096)))


def test_a_window_as_long_as_the_context_is_none() -> None:
    spec = make_spec({**LLAMA, "model_type": "mistral", "max_position_embeddings": 4096})
    assert spec.layer_windows == (None,) * 4


def test_dynamic_rope_within_its_context_is_the_plain_one() -> None:
    frame = RopeFrame(head_dim=16, max_positions=128)
    plain = make_rope({"rope_type": "default", "rope_theta": 1e4}, frame)
    assert make_rope({"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}, frame) == plain
    assert plain.rotary_dim == 16


def test_the_default_model_as_published(tmp_path: Path) -> None:
    """The fields of SmolLM2's own config.json, some of which are for other programs."""
    config = {
        **LLAMA,
        "architectures": ["LlamaForCausalLM"],
        "is_llama_config": True,
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(tmp_path)
    assert spec.tied_head
    assert spec.attention_scale == 0.25
    assert torch.tensor(spec.ropes[0].inverse_frequencies)[1] == 1.0 / torch.tensor(100000.0) ** 0.125
