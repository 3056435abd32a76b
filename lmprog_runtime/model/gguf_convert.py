"""Reads a GGUF file of the Llama family: what it says as files in Hugging Face layout, its tensors one at a time.

Metadata that would change the computation and is not understood is refused by name. Converted to safetensors, F32, F16
and BF16 are copied, quantised tensors become the float32 numbers that they stand for, unless the caller asks for
bfloat16. Memory holds one tensor, not the model. Source of the format: the GGUF specification of ggml.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.gguf_reader import StoredTensor, read_gguf
from lmprog_runtime.model.gguf_tokenizer import special_ids, write_tokenizer

Progress = Callable[[int], object]  # called with the number of bytes written since the last call

Metadata = Mapping[str, Any]


class _Architecture(NamedTuple):
    class_name: str
    pairs_rotary_rows: bool  # the writer of the file put rotary partners next to each other in q and k
    may_have_bias: bool  # q, k and v can have a bias that the config must announce


_ARCHITECTURES = {
    "llama": _Architecture("LlamaForCausalLM", True, True),
    "qwen2": _Architecture("Qwen2ForCausalLM", False, False),
    "qwen3": _Architecture("Qwen3ForCausalLM", False, False),
}

_UNDERSTOOD = frozenset(
    (
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
        "attention.value_length", "block_count", "context_length", "embedding_length", "expert_count",
        "expert_used_count", "feed_forward_length", "rope.dimension_count", "rope.freq_base", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.type", "vocab_size",
    )
)  # fmt: skip

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_PART = 1 << 20  # values that are computed at a time

_ROPE_FREQUENCIES = "rope_freqs.weight"
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_NUMPY_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GgufTensor(NamedTuple):
    """A tensor of the file and what it becomes."""

    name: str  # in Hugging Face layout
    dtype: str  # as safetensors writes it
    shape: tuple[int, ...]
    source: StoredTensor
    heads: int  # rows are rotary pairs of this many heads; 0: rows stay as they are

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]

    @property
    def kind(self) -> str:
        """How the file stores it: "F32", "Q4_1", ..."""
        return str(self.source.kind.name)

    def raw(self) -> NDArray[np.uint8]:
        """The bytes of its blocks."""
        return self.source.data

    def floats(self) -> NDArray[np.float32]:
        """[shape] its values, an array of its own."""
        return _in_layout(_dequantized(self), self)


class GgufFile:
    """An open GGUF file of a supported architecture. Raises ModelUnsupported for any other.

    `quantised_as` is the dtype that quantised tensors get: "F32" holds their values exactly, "BF16" rounds them.
    """

    def __init__(self, path: Path, *, quantised_as: Literal["F32", "BF16"] = "F32") -> None:
        self.metadata, tensors = read_gguf(path)
        self._architecture = _architecture(self.metadata, path)
        self._quantised_as = quantised_as
        self.tensors = [self._plan(tensor) for tensor in tensors if tensor.name != _ROPE_FREQUENCIES]
        self._rope_frequencies = [_float32(tensor) for tensor in tensors if tensor.name == _ROPE_FREQUENCIES]

    @property
    def num_bytes(self) -> int:
        """Size of the converted weights."""
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def is_quantised(self) -> bool:
        return any(tensor.kind not in _NUMPY_DTYPES for tensor in self.tensors)

    def convert(self, target: Path, progress: Progress) -> None:
        """Write model.safetensors and what `describe` writes."""
        write_safetensors(target / "model.safetensors", self.tensors, progress)
        self.describe(target)

    def describe(self, target: Path) -> None:
        """Write config.json, generation_config.json and the tokenizer's files into `target`."""
        _write_json(target / "config.json", self._config())
        _write_json(target / "generation_config.json", special_ids(self.metadata))
        write_tokenizer(self.metadata, target)

    def _field(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.metadata['general.architecture']}.{name}", default)

    def _plan(self, source: StoredTensor) -> GgufTensor:
        found = _TENSOR.fullmatch(source.name)
        if found is None or found[2] not in _NAMES:
            raise ModelUnsupported(f"The GGUF file has a tensor {source.name!r} that is not understood.")
        layer, part, suffix = found.groups()
        prefix = f"model.layers.{layer}." if layer is not None else ""
        dtype = source.kind.name if source.kind.name in _NUMPY_DTYPES else self._quantised_as
        name = f"{prefix}{_NAMES[part]}.{suffix}"
        return GgufTensor(name, dtype, source.shape, source, self._paired_heads(part))

    def _paired_heads(self, part: str) -> int:
        if not self._architecture.pairs_rotary_rows or part not in ("attn_q", "attn_k"):
            return 0
        heads = self._field("attention.head_count")
        return int(heads if part == "attn_q" else self._field("attention.head_count_kv", heads))

    def _config(self) -> dict[str, Any]:
        names = {tensor.name for tensor in self.tensors}
        embedding = next(tensor for tensor in self.tensors if tensor.name == "model.embed_tokens.weight")
        matrices = [tensor.dtype for tensor in self.tensors if len(tensor.shape) == 2]
        config = {
            "architectures": [self._architecture.class_name],
            "model_type": self.metadata["general.architecture"],
            "vocab_size": embedding.shape[0],
            **self._sizes(),
            "hidden_act": "silu",
            "rms_norm_eps": _shortest(self._field("attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self._field("rope.freq_base", 10000.0)),
            "rope_scaling": self._rope_scaling(),
            "tie_word_embeddings": "lm_head.weight" not in names,
            "dtype": _DTYPES[max(matrices, key=lambda dtype: _ITEM_BYTES[dtype])],
            **special_ids(self.metadata),
        }
        if self._architecture.may_have_bias:
            config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in names
            config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in names
        return config

    def _sizes(self) -> dict[str, int]:
        hidden, heads = self._field("embedding_length"), self._field("attention.head_count")
        head_dim = self._field("attention.key_length", hidden // heads)
        if self._field("rope.dimension_count", head_dim) != head_dim:
            raise ModelUnsupported("The GGUF file rotates only a part of each head, which is not supported.")
        if self._field("attention.value_length", head_dim) != head_dim:
            raise ModelUnsupported("The GGUF file has keys and values of different sizes, which is not supported.")
        return {
            "hidden_size": hidden,
            "intermediate_size": self._field("feed_forward_length"),
            "num_hidden_layers": self._field("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._field("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._field("context_length"),
        }

    def _rope_scaling(self) -> dict[str, Any] | None:
        if self._rope_frequencies:
            head_dim = self._sizes()["head_dim"]
            return _llama3_scaling(self._rope_frequencies[0], self._field("rope.freq_base", 10000.0), head_dim)
        kind, factor = self._field("rope.scaling.type", "none"), self._field("rope.scaling.factor", 1.0)
        if kind == "none" or factor == 1.0:
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn" and self._field("rope.scaling.original_context_length"):
            original = self._field("rope.scaling.original_context_length")
            return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        raise ModelUnsupported(f"The GGUF file scales positions by {kind!r}; known: none, linear, yarn, llama3.")


def write_safetensors(path: Path, tensors: Iterable[GgufTensor], progress: Progress) -> None:
    """Write the tensors one after the other. Source of the layout: the safetensors format, version 1."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    tensors = list(tensors)
    for tensor in tensors:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            file.write(_values(tensor).tobytes())
            progress(tensor.num_bytes)


def _values(tensor: GgufTensor) -> NDArray[Any]:
    """The tensor's values, rows in the order of Hugging Face layout; bfloat16 as uint16."""
    if tensor.kind in _NUMPY_DTYPES:
        return _in_layout(tensor.raw().view(_NUMPY_DTYPES[tensor.kind]), tensor)
    values = _dequantized(tensor)
    return _in_layout(_round_to_bfloat16(values) if tensor.dtype == "BF16" else values, tensor)


def _float32(tensor: StoredTensor) -> NDArray[np.float32]:
    if tensor.kind.name != "F32":
        raise ModelUnsupported(f"{tensor.name} is stored as {tensor.kind.name}; only F32 is known there.")
    return tensor.data.view(np.float32)


def _dequantized(tensor: GgufTensor) -> NDArray[np.float32]:
    """In parts: gguf makes several arrays of the size of what it is given."""
    from gguf.quants import dequantize

    values = np.empty(tensor.shape, np.float32)
    stored = tensor.raw().reshape(len(values), -1)
    count = max(1, _PART * len(values) // values.size)
    for start in range(0, len(values), count):
        part = dequantize(stored[start : start + count], tensor.source.kind)
        values[start : start + count] = part.reshape(-1, *tensor.shape[1:])
    return values


def _in_layout(values: NDArray[Any], tensor: GgufTensor) -> NDArray[Any]:
    values = values.reshape(tensor.shape)
    return split_rotary_pairs(values, tensor.heads) if tensor.heads else values


def _round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[Any]:
    """The nearest bfloat16 of finite numbers, ties to even, as uint16: the upper half of each float32."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def split_rotary_pairs(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows 2i and 2i + 1 of each head become rows i and i + head_dim / 2, the layout of `rotate_half`."""
    rest = values.shape[1:]
    split: NDArray[Any] = values.reshape(heads, -1, 2, *rest).swapaxes(1, 2).reshape(values.shape)
    return split


def _llama3_scaling(divisors: NDArray[np.float32], theta: float, head_dim: int) -> dict[str, Any]:
    """The Llama 3 scaling whose divisors of the frequencies the file stores, one per pair of a head."""
    scaling = {
        "rope_type": "llama3",
        "factor": float(divisors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    if not np.allclose(divisors, _llama3_divisors(scaling, theta, head_dim), rtol=1e-4):
        raise ModelUnsupported("The GGUF file stores position frequencies that are not those of Llama 3.")
    return scaling


def _llama3_divisors(scaling: Mapping[str, Any], theta: float, head_dim: int) -> NDArray[np.float64]:
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = np.clip((scaling["original_max_position_embeddings"] / wavelength - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - blend) / scaling["factor"] + blend))


def _architecture(metadata: Metadata, path: Path) -> _Architecture:
    name = metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ModelUnsupported(f"{path} holds a model of architecture {name!r}; GGUF files can be of: {known}.")
    if metadata.get(f"{name}.expert_count"):
        raise ModelUnsupported(f"{path} holds a mixture of experts, which is not supported.")
    for key in metadata:
        if key.startswith(f"{name}.") and key.removeprefix(f"{name}.") not in _UNDERSTOOD:
            raise ModelUnsupported(f"{path} sets {key!r}, which is not understood.")
    return _ARCHITECTURES[str(name)]


def _shortest(value: float) -> float:
    """1e-05 for the float32 that the file stores as 9.99999974e-06: the same number once it is float32 again."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
