"""Random models of a few thousand weights, one per family, made with transformers' own config classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from tests.support.byte_tokenizer import CHATML, NAMED, byte_tokenizer_json

transformers_logging.disable_progress_bar()

VOCAB = 128

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [2.0] * 6,
    "partial_rotary_factor": 0.75,
}
_GEMMA_3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

DESCRIBED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-odd-sizes": (
        "llama",
        {"head_dim": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48, "vocab_size": 131},
    ),
    "llama-three-kv-heads": (
        "llama",
        {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 1024},
    ),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama-dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama-llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": _YARN}),
    "llama-yarn-mscale": (
        "llama",
        {"rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False, "beta_fast": 16}},
    ),
    "mistral": ("mistral", {"sliding_window": 8}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-bias-window": (
        "qwen3",
        {"attention_bias": True, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "smollm3": ("smollm3", {}),
    "phi3": ("phi3", {"sliding_window": 8}),
    "phi3-partial": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ),
    "phi3-longrope": (
        "phi3",
        {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64, "max_position_embeddings": 256},
    ),
    "granite": (
        "granite",
        {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    ),
    "gemma": ("gemma", {}),
    "gemma-one-kv-head": ("gemma", {"num_key_value_heads": 1, "head_dim": 32}),
    "gemma2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 24, "final_logit_softcapping": 5.0}),
    "gemma3-linear": (
        "gemma3_text",
        {"sliding_window": 8, "sliding_window_pattern": 2, "rope_parameters": _GEMMA_3_ROPES},
    ),
    "gemma3": ("gemma3_text", {"sliding_window": 8, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2}),
}
"""Families with a model description, and the variants of their configs that change the computation."""


def make_model(family: str, *, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A random float32 model, attention eager. `family` is a transformers `model_type`; `fields` go to its config."""
    config = AutoConfig.for_model(family, **{**_BASE, **fields})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # norms and biases too, so that a forgotten one shows
            parameter.normal_(0.0, 0.08) if parameter.ndim > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


class TinyModels:
    """Models of DESCRIBED, made and saved on first use and then shared; do not change what you get."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._models: dict[str, PreTrainedModel] = {}

    def model(self, name: str) -> PreTrainedModel:
        if name not in self._models:
            self._models[name] = save_model(name, self._root / name)
        return self._models[name]

    def directory(self, name: str) -> Path:
        self.model(name)
        return self._root / name

    def logits(self, name: str, tokens: list[int]) -> torch.Tensor:
        """[tokens, vocab] of transformers' eager model."""
        return eager_logits(self.model(name), tokens)


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("tiny_models"))


@torch.inference_mode()
def eager_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, vocab]"""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def save_whole_model(directory: Path, **fields: Any) -> Path:
    """All that a model's folder has: weights of a llama, the byte tokenizer, a chat template."""
    make_model("llama", **fields).save_pretrained(directory)
    (directory / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (directory / "tokenizer_config.json").write_text(json.dumps({**NAMED, "chat_template": CHATML}))
    return directory


def save_model(name: str, directory: Path, *, seed: int = 0) -> PreTrainedModel:
    """Make the model `name` of DESCRIBED and save it as config.json and model.safetensors."""
    family, fields = DESCRIBED[name]
    model = make_model(family, seed=seed, **fields)
    model.save_pretrained(directory)
    return model
