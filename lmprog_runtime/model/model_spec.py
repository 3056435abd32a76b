"""One description for every decoder of the Llama family, read from a checkpoint's config.json.

A config field that is neither used nor known to be without effect is refused by name: a model is run exactly or not at
all. `FAMILIES` is the whole table; executors see only `ModelSpec` and know no family names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.rope import Rope, RopeFrame, context_limit, make_rope

Activation = Literal["silu", "gelu_tanh", "gelu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A pre-norm decoder with RMSNorm, grouped-query attention and a gated MLP:

        x = embedding[token] * embedding_scale
        per layer:  h = rms_norm(x);  q, k, v = split(h @ qkv.T + qkv_bias)
                    q, k = rms_norm over head_dim (qk_norm), then RoPE of the layer
                    a = attention(q, k, v; attention_scale, attention_softcap, window of the layer) @ output.T
                    x += (rms_norm(a) if sandwich_norms else a) * residual_scale
                    h = rms_norm(x);  m = (activation(gate) * up) @ down.T
                    x += (rms_norm(m) if sandwich_norms else m) * residual_scale
        logits = softcap(rms_norm(x) @ head.T * logit_scale)

    softcap(z) = c * tanh(z / c). A window w lets position p see the keys at positions p - w + 1 .. p.
    """

    family: str
    vocab_size: int
    context_length: int  # tokens
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    activation: Activation
    norm_eps: float
    norm_offset: float  # added to every norm's stored weight; ModelWeights has it already added
    sandwich_norms: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied_head: bool
    fused_checkpoint: bool  # the checkpoint stores qkv_proj and gate_up_proj; ModelWeights fuses the others
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    logit_scale: float
    embedding_scale: float  # rounded to the dtype of the weights before use, as the models were trained
    residual_scale: float
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int | None, ...]  # [num_layers] index into `ropes`; None: the layer has no positions
    layer_windows: tuple[int | None, ...]  # [num_layers] tokens; None: all keys


class _Family(NamedTuple):
    fields: Mapping[str, Any]  # the config fields it understands, with the values that an absent field stands for
    spec: Mapping[str, Any]  # ModelSpec fields that all its models share, where they are not `_PLAIN`


_PLAIN: dict[str, Any] = {
    "norm_offset": 0.0,
    "sandwich_norms": False,
    "qk_norm": False,
    "fused_checkpoint": False,
    "has_embedding_scale": False,
}

_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

_COMMON: dict[str, Any] = {
    **dict.fromkeys(_REQUIRED),
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "rope_theta": 10000.0,
    "rope_scaling": None,
}
_BIASES = {"attention_bias": False, "mlp_bias": False}
_WINDOWS = {
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_GEMMA = {
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
_GEMMA_2 = {
    **_GEMMA,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
}
_GEMMA_3 = {
    **_GEMMA_2,
    "max_position_embeddings": 131072,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
    "_sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
_GEMMA_SPEC = {"norm_offset": 1.0, "has_embedding_scale": True}

FAMILIES: dict[str, _Family] = {
    "llama": _Family({**_COMMON, **_BIASES}, {}),
    "mistral": _Family({**_COMMON, "max_position_embeddings": 131072, "sliding_window": 4096}, {}),
    "qwen2": _Family({**_COMMON, "max_position_embeddings": 32768, **_WINDOWS}, {"qkv_bias": True}),
    "qwen3": _Family(
        {**_COMMON, "head_dim": 128, "max_position_embeddings": 32768, **_WINDOWS, "attention_bias": False},
        {"qk_norm": True},
    ),
    "smollm3": _Family(
        {
            **_COMMON,
            **_BIASES,
            **_WINDOWS,
            "sliding_window": None,
            "max_position_embeddings": 32768,
            "rope_theta": 2_000_000.0,
            "tie_word_embeddings": True,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        {},
    ),
    "phi3": _Family(
        {
            **_COMMON,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "sliding_window": None,
            "partial_rotary_factor": 1.0,
        },
        {"fused_checkpoint": True},
    ),
    "granite": _Family(
        {
            **_COMMON,
            **_BIASES,
            "embedding_multiplier": 1.0,
            "logits_scaling": 1.0,
            "residual_multiplier": 1.0,
            "attention_multiplier": 1.0,
        },
        {},
    ),
    "gemma": _Family({**_COMMON, **_GEMMA}, _GEMMA_SPEC),
    "gemma2": _Family({**_COMMON, **_GEMMA_2, "attn_logit_softcapping": 50.0}, {**_GEMMA_SPEC, "sandwich_norms": True}),
    "gemma3_text": _Family({**_COMMON, **_GEMMA_3}, {**_GEMMA_SPEC, "sandwich_norms": True, "qk_norm": True}),
}

_WITHOUT_EFFECT = frozenset(
    (
        "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout",
        "auto_map", "bos_token_id", "cache_implementation", "dtype", "embd_pdrop", "eos_token_id", "id2label",
        "initializer_range", "is_llama_config", "label2id", "model_type", "pad_token_id", "pretraining_tp",
        "resid_pdrop", "torch_dtype", "transformers.js_config", "transformers_version", "unsloth_fixed", "use_cache",
    )
)  # fmt: skip
"""Fields for training, for other programs, or for the tokenizer."""

_ONLY: dict[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "attn_logit_softcapping": (None,),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "lm_head_bias": (False,),
    "mlp_bias": (False,),
    "quantization_config": (None,),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (None, False),
    "use_mrope": (False,),
}
"""Fields that a family does not have, with the values that say what is done anyway."""

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def read_spec(directory: Path) -> ModelSpec:
    """The spec of a checkpoint in Hugging Face layout. Raises ModelUnsupported, naming what is not understood."""
    return make_spec(json.loads((directory / "config.json").read_text(encoding="utf-8")))


def make_spec(config: Mapping[str, Any]) -> ModelSpec:
    """`config` is the content of config.json, as any version of transformers since 4.30 writes it."""
    name = config.get("model_type")
    if name not in FAMILIES:
        raise ModelUnsupported(f"There is no model description for {name!r}; known: {', '.join(FAMILIES)}.")
    family = FAMILIES[name]
    _check_fields(config, family, name)
    fields = {**family.fields, **config}
    layer_types = _layer_types(fields)
    ropes, layer_ropes, context_length = _ropes(fields, layer_types)
    return ModelSpec(
        family=name,
        **_sizes(fields),
        **_scales(fields, family),
        **_flags(fields, family),
        activation=_activation(fields, name),
        context_length=context_length,
        norm_eps=fields["rms_norm_eps"],
        ropes=ropes,
        layer_ropes=layer_ropes,
        layer_windows=_windows(fields, layer_types, context_length),
    )


def _check_fields(config: Mapping[str, Any], family: _Family, name: str) -> None:
    for field, value in config.items():
        if field in family.fields or field in _WITHOUT_EFFECT:
            continue
        if field not in _ONLY:
            raise ModelUnsupported(f"The {name} config has a field {field!r} that is not understood.")
        if value not in _ONLY[field]:
            raise ModelUnsupported(f"The {name} config sets {field} to {value!r}, which is not supported.")
    for field in _REQUIRED:
        if config.get(field) is None:
            raise ModelUnsupported(f"The {name} config lacks {field!r}.")


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    heads = fields["num_attention_heads"]
    return {
        "vocab_size": fields["vocab_size"],
        "hidden_size": fields["hidden_size"],
        "intermediate_size": fields["intermediate_size"],
        "num_layers": fields["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": fields["num_key_value_heads"] or heads,
        "head_dim": _head_dim(fields),
    }


def _head_dim(fields: Mapping[str, Any]) -> int:
    return int(fields["head_dim"] or fields["hidden_size"] // fields["num_attention_heads"])


def _scales(fields: Mapping[str, Any], family: _Family) -> dict[str, Any]:
    attention = fields.get("attention_multiplier") or (fields.get("query_pre_attn_scalar") or _head_dim(fields)) ** -0.5
    has_embedding_scale = {**_PLAIN, **family.spec}["has_embedding_scale"]
    return {
        "attention_scale": attention,
        "attention_softcap": fields.get("attn_logit_softcapping"),
        "logit_softcap": fields.get("final_logit_softcapping"),
        "logit_scale": 1.0 / fields.get("logits_scaling", 1.0),
        "embedding_scale": fields["hidden_size"] ** 0.5
        if has_embedding_scale
        else fields.get("embedding_multiplier", 1.0),
        "residual_scale": fields.get("residual_multiplier", 1.0),
    }


def _flags(fields: Mapping[str, Any], family: _Family) -> dict[str, Any]:
    has_bias = bool(fields.get("attention_bias"))
    found = {
        **_PLAIN,
        "qkv_bias": has_bias,
        "output_bias": has_bias,
        "mlp_bias": bool(fields.get("mlp_bias")),
        "tied_head": bool(fields["tie_word_embeddings"]),
        **family.spec,
    }
    del found["has_embedding_scale"]
    return found


def _activation(fields: Mapping[str, Any], name: str) -> Activation:
    value = fields.get("hidden_activation") or fields["hidden_act"]
    if name == "gemma" and value == "gelu":  # the first Gemma configs say "gelu" and mean the tanh form
        return "gelu_tanh"
    if value not in _ACTIVATIONS:
        raise ModelUnsupported(f"The {name} config asks for activation {value!r}; known: {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[value]


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    """One of "full_attention" and "sliding_attention" per layer."""
    given = fields.get("layer_types")
    found = list(given) if given else [_layer_type(fields, layer) for layer in range(fields["num_hidden_layers"])]
    for kind in found:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelUnsupported(
                f"The config has a layer of type {kind!r}; known: full_attention, sliding_attention."
            )
    if len(found) != fields["num_hidden_layers"]:
        raise ModelUnsupported(f"The config names {len(found)} layer types for {fields['num_hidden_layers']} layers.")
    return found


def _layer_type(fields: Mapping[str, Any], layer: int) -> str:
    return "sliding_attention" if fields.get("sliding_window") and _is_sliding(fields, layer) else "full_attention"


def _is_sliding(fields: Mapping[str, Any], layer: int) -> bool:
    """The rule of transformers' config classes for configs that do not list their layer types."""
    if "no_rope_layers" in fields:
        return bool(fields["use_sliding_window"]) and not _has_rope(fields, layer)
    if "use_sliding_window" in fields:
        return bool(fields["use_sliding_window"]) and layer >= fields["max_window_layers"]
    if "sliding_window_pattern" in fields:
        return bool((layer + 1) % fields["sliding_window_pattern"])
    if "layer_types" in fields:  # Gemma 2
        return layer % 2 == 0
    return True


def _windows(fields: Mapping[str, Any], layer_types: list[str], context_length: int) -> tuple[int | None, ...]:
    window = fields.get("sliding_window")
    if not fields.get("use_sliding_window", True) or window is None or window >= context_length:
        window = None
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def _has_rope(fields: Mapping[str, Any], layer: int) -> bool:
    if "no_rope_layers" not in fields:
        return True
    listed = fields["no_rope_layers"]
    return bool(listed[layer]) if listed else (layer + 1) % fields["no_rope_layer_interval"] != 0


def _ropes(fields: Mapping[str, Any], layer_types: list[str]) -> tuple[tuple[Rope, ...], tuple[int | None, ...], int]:
    """The distinct ropes, the one of each layer, and the context for which they are exact."""
    max_positions = fields["max_position_embeddings"]
    frame = RopeFrame(_head_dim(fields), max_positions)
    parameters = _rope_parameters(fields)
    kinds = sorted(set(layer_types))
    made = {kind: make_rope(parameters[kind], frame) for kind in kinds}
    ropes = tuple(dict.fromkeys(made.values()))
    of_layer = tuple(
        ropes.index(made[kind]) if _has_rope(fields, layer) else None for layer, kind in enumerate(layer_types)
    )
    return ropes, of_layer, min(context_limit(parameters[kind], max_positions) for kind in kinds)


def _rope_parameters(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Complete rope parameters per layer type, from both the old fields (rope_theta, rope_scaling) and the new one."""
    given = fields["rope_parameters"] or {}
    is_nested = "full_attention" in given or "sliding_attention" in given
    full = dict((given.get("full_attention") or {}) if is_nested else given) | dict(fields["rope_scaling"] or {})
    local_theta = fields.get("rope_local_base_freq")
    sliding = dict(given.get("sliding_attention") or {}) if is_nested or local_theta else dict(full)
    return {
        "full_attention": _complete(full, fields, fields["rope_theta"]),
        "sliding_attention": _complete(sliding, fields, local_theta or fields["rope_theta"]),
    }


def _complete(parameters: dict[str, Any], fields: Mapping[str, Any], theta: float) -> dict[str, Any]:
    kind = parameters.pop("type", "default")
    kind = parameters.setdefault("rope_type", kind)
    if fields["model_type"] == "phi3" and kind in ("su", "yarn"):  # names of longrope in early Phi-3 configs
        kind = parameters["rope_type"] = "longrope"
    parameters.setdefault("rope_theta", theta)
    if "partial_rotary_factor" in fields:
        parameters.setdefault("partial_rotary_factor", fields["partial_rotary_factor"])
    elif kind == "default" and parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelUnsupported("The config sets partial_rotary_factor, which transformers ignores for this family.")
    if kind in ("llama3", "yarn", "longrope"):
        outside = fields.get("original_max_position_embeddings")
        parameters.setdefault("original_max_position_embeddings", fields["max_position_embeddings"])
        if outside is not None:
            parameters["original_max_position_embeddings"] = outside
    return parameters
