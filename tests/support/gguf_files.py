"""GGUF files as llama.cpp's converter writes them, of models made in the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch

from tests.support.byte_tokenizer import byte_tokenizer_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "rope_freqs": "rope_freqs",
}  # fmt: skip


class View(NamedTuple):
    """A model with other tensors than its own."""

    config: Any
    state: dict[str, torch.Tensor]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.state


def byte_vocabulary() -> tuple[list[str], list[int]]:
    vocabulary = json.loads(byte_tokenizer_json())["model"]["vocab"]
    return list(vocabulary), [CONTROL] * 3 + [NORMAL] * (len(vocabulary) - 3)


def write_gguf(path: Path, family: str, model: Any, quantise: Any = None, **fields: Any) -> None:
    """What llama.cpp's converter writes for the model: rotary pairs next to each other for llama, not for qwen.

    `quantise`: a kind for all matrices, or a function from the name of a tensor to one.
    """
    config = model.config
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens, kinds = byte_vocabulary()
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, value in fields.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else add)(f"{family}.{name.replace('__', '.')}", value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        kind = quantise(name) if callable(quantise) else quantise
        add_tensor(writer, name, tensor.numpy(), family, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: Any, name: str, values: np.ndarray, family: str, config: Any, quantise: Any) -> None:
    part, kind = name.removeprefix("model.layers.").rsplit(".", 1)
    layer, _, inner = part.partition(".")
    stored = f"blk.{layer}.{NAMES[inner]}" if name.startswith("model.layers.") else NAMES[part]
    if family == "llama" and inner in ("self_attn.q_proj", "self_attn.k_proj"):
        heads = config.num_attention_heads if "q_proj" in inner else config.num_key_value_heads
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if quantise is None or values.ndim == 1:
        writer.add_tensor(f"{stored}.{kind}", values)
    else:
        writer.add_tensor(f"{stored}.{kind}", blocks(values, quantise), raw_dtype=quantise)


def blocks(values: np.ndarray, kind: Any) -> np.ndarray:
    """[rows, bytes]. Of Q4_K, which gguf can read but not make, random ones of numbers of the usual size."""
    if kind.name != "Q4_K":
        return gguf.quants.quantize(values, kind)
    generator = np.random.default_rng(values.size)
    raw = generator.integers(0, 256, (len(values), values.shape[1] // 256, 144), np.uint8)
    raw[..., :4] = np.array([2e-4, 1.5e-3], np.float16).view(np.uint8)
    return raw.reshape(len(values), -1)


def floats_of(path: Path, config: Any) -> dict[str, torch.Tensor]:
    """The state of a transformers model with the numbers of a file that `write_gguf` has written for llama."""
    names = {stored: name for name, stored in NAMES.items()}
    state = {}
    for tensor in gguf.GGUFReader(str(path)).tensors:
        *block, part, kind = tensor.name.split(".")
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        if part in ("attn_q", "attn_k"):
            heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        state[f"{prefix}{names[part]}.{kind}"] = torch.from_numpy(values.copy())
    return state
