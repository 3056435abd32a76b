"""Weights of a checkpoint, memory-mapped and in the shape that executors want. Knows the names in checkpoints.

Nothing is read before it is asked for, and nothing is kept here: an executor converts or packs a layer's tensors and
lets them go. Only safetensors files are read (a pickle runs code).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from lmprog_runtime.errors import ModelNotFound, ModelUnsupported
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.model_spec import ModelSpec


class LayerWeights(NamedTuple):
    """One decoder layer. Norms are float32 with `norm_offset` added; everything else has the checkpoint's dtype."""

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(heads + 2 * kv_heads) * head_dim, hidden], rows of q, then k, then v
    qkv_bias: Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None  # [head_dim]
    output: Tensor  # [hidden, heads * head_dim]
    output_bias: Tensor | None  # [hidden]
    attention_post_norm: Tensor | None  # [hidden], on the attention's output before the residual sum
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 * intermediate, hidden], rows of gate, then up
    gate_up_bias: Tensor | None  # [2 * intermediate]
    down: Tensor  # [hidden, intermediate]
    down_bias: Tensor | None  # [hidden]
    mlp_post_norm: Tensor | None  # [hidden], on the MLP's output before the residual sum


class TensorFiles:
    """The tensors of a safetensors directory by name, single file or sharded, each mapped when it is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, Any] = {}
        self._file_of = self._index()

    def _index(self) -> dict[str, str]:
        index = self._directory / "model.safetensors.index.json"
        if index.exists():
            listed: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return listed
        if not (self._directory / "model.safetensors").exists():
            raise ModelNotFound(f"{self._directory} has no model.safetensors; save_pretrained makes one.")
        return dict.fromkeys(self._file("model.safetensors").keys(), "model.safetensors")

    def _file(self, name: str) -> Any:
        if name not in self._open:
            if not (self._directory / name).exists():
                raise ModelNotFound(f"{self._directory} lacks {name!r}; fetch the model again.")
            self._open[name] = safe_open(self._directory / name, framework="pt", device="cpu")
        return self._open[name]

    def names(self) -> set[str]:
        return set(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file(self._file_of[name]).get_slice(name).get_shape())

    def get(self, name: str) -> Tensor:
        return self._file(self._file_of[name]).get_tensor(name)  # type: ignore[no-any-return]


class Tensors(Protocol):
    """The tensors of a checkpoint by their names in Hugging Face layout."""

    def names(self) -> set[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def get(self, name: str) -> Tensor: ...


class ModelWeights:
    """A checkpoint's tensors for one spec. The constructor raises ModelUnsupported when they do not fit each other."""

    def __init__(self, files: Tensors, spec: ModelSpec) -> None:
        self._files, self._spec = files, spec
        self._check_shapes()

    @property
    def head_name(self) -> str:
        return "model.embed_tokens.weight" if self._spec.tied_head else "lm_head.weight"

    def embedding(self) -> Tensor:
        """[vocab_size, hidden]"""
        return self._files.get("model.embed_tokens.weight")

    def head(self) -> Tensor:
        """[vocab_size, hidden]; the embedding itself when tied."""
        return self._files.get(self.head_name)

    def final_norm(self) -> Tensor:
        """[hidden] float32 with the offset added"""
        return self._norm("model.norm.weight")

    def layer(self, index: int) -> LayerWeights:
        matrices: dict[str, Any] = {part: self._join(names) for part, names in self.matrix_names(index).items()}
        return LayerWeights(**self.vectors(index), **matrices)

    def matrix_names(self, index: int) -> dict[str, list[str]]:
        """The matrices of a layer, by their names in LayerWeights, and the tensors that each is joined of."""
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv, gate_up = _fused_names(self._spec)
        return {
            "qkv": [f"{attention}{name}.weight" for name in qkv],
            "output": [attention + "o_proj.weight"],
            "gate_up": [f"{mlp}{name}.weight" for name in gate_up],
            "down": [mlp + "down_proj.weight"],
        }

    def vectors(self, index: int) -> dict[str, Any]:
        """Norms and biases of a layer, by their names in LayerWeights; None for those that the model lacks."""
        spec, prefix = self._spec, f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv, gate_up = _fused_names(spec)
        after_attention, before_mlp, after_mlp = _norm_names(spec)
        return {
            "input_norm": self._norm(prefix + "input_layernorm.weight"),
            "qkv_bias": self._join([f"{attention}{name}.bias" for name in qkv]) if spec.qkv_bias else None,
            "q_norm": self._norm(attention + "q_norm.weight") if spec.qk_norm else None,
            "k_norm": self._norm(attention + "k_norm.weight") if spec.qk_norm else None,
            "output_bias": self._files.get(attention + "o_proj.bias") if spec.output_bias else None,
            "attention_post_norm": self._norm(prefix + after_attention) if spec.sandwich_norms else None,
            "mlp_norm": self._norm(prefix + before_mlp),
            "gate_up_bias": self._join([f"{mlp}{name}.bias" for name in gate_up]) if spec.mlp_bias else None,
            "down_bias": self._files.get(mlp + "down_proj.bias") if spec.mlp_bias else None,
            "mlp_post_norm": self._norm(prefix + after_mlp) if spec.sandwich_norms else None,
        }

    def _norm(self, name: str) -> Tensor:
        return self._files.get(name).float() + self._spec.norm_offset

    def _join(self, names: list[str]) -> Tensor:
        parts = [self._files.get(name) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _check_shapes(self) -> None:
        expected = expected_shapes(self._spec)
        found = self._files.names()
        for name, shape in expected.items():
            if name not in found:
                raise ModelUnsupported(f"The checkpoint lacks {name!r}, which its config calls for.")
            if self._files.shape(name) != shape:
                raise ModelUnsupported(f"{name!r} has shape {self._files.shape(name)}; its config calls for {shape}.")
        unused = [name for name in found - set(expected) if not _is_redundant(name, self._spec)]
        if unused:
            raise ModelUnsupported(f"The checkpoint has a tensor {min(unused)!r} that its config gives no use for.")


def open_weights(directory: Path, spec: ModelSpec) -> ModelWeights:
    """Map a checkpoint in Hugging Face layout. Raises ModelNotFound (no safetensors) or ModelUnsupported (a misfit)."""
    return ModelWeights(TensorFiles(directory), spec)


def open_checkpoint(files: ModelFiles, spec: ModelSpec) -> ModelWeights:
    """The weights of a model as floats, wherever they are. Raises ModelNotFound or ModelUnsupported (a misfit)."""
    return ModelWeights(open_tensors(files), spec)


def open_tensors(files: ModelFiles) -> Tensors:
    """The tensors of a model, wherever they are. Raises ModelNotFound."""
    if files.has_safetensors or files.gguf is None:
        return TensorFiles(files.directory)
    from lmprog_runtime.model.gguf_convert import GgufFile
    from lmprog_runtime.model.gguf_weights import GgufTensors

    return GgufTensors(GgufFile(files.gguf))


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this spec has, by its name in Hugging Face layout."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size),
        "model.norm.weight": (spec.hidden_size,),
    }
    if not spec.tied_head:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    for index in range(spec.num_layers):
        prefix = f"model.layers.{index}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(spec)}
    return shapes


def _layer_shapes(spec: ModelSpec) -> Iterable[tuple[str, tuple[int, ...]]]:
    hidden, heads, inner = spec.hidden_size, spec.num_heads * spec.head_dim, spec.intermediate_size
    kv_heads = spec.num_kv_heads * spec.head_dim
    qkv, gate_up = _fused_names(spec)
    qkv_rows = (heads, kv_heads, kv_heads) if len(qkv) == 3 else (heads + 2 * kv_heads,)
    for name, rows in zip(qkv, qkv_rows, strict=True):
        yield from _linear(f"self_attn.{name}", rows, hidden, spec.qkv_bias)
    for name in gate_up:
        yield from _linear(f"mlp.{name}", 2 * inner // len(gate_up), hidden, spec.mlp_bias)
    yield from _linear("self_attn.o_proj", hidden, heads, spec.output_bias)
    yield from _linear("mlp.down_proj", hidden, inner, spec.mlp_bias)
    yield "input_layernorm.weight", (hidden,)
    yield from ((name, (hidden,)) for name in _norm_names(spec) if name)
    if spec.qk_norm:
        yield "self_attn.q_norm.weight", (spec.head_dim,)
        yield "self_attn.k_norm.weight", (spec.head_dim,)


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> Iterable[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (rows, columns)
    if has_bias:
        yield f"{name}.bias", (rows,)


def _fused_names(spec: ModelSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if spec.fused_checkpoint:
        return ("qkv_proj",), ("gate_up_proj",)
    return ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


def _norm_names(spec: ModelSpec) -> tuple[str, str, str]:
    """Names of the norms after attention, before the MLP and after it; "" where there is none."""
    if spec.sandwich_norms:
        return (
            "post_attention_layernorm.weight",
            "pre_feedforward_layernorm.weight",
            "post_feedforward_layernorm.weight",
        )
    return "", "post_attention_layernorm.weight", ""


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """Tensors that some writers add: rotary tables, and the head of a tied model."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and spec.tied_head)
