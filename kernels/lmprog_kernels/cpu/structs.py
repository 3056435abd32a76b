"""The structs of abi.h, field by field."""

from __future__ import annotations

import ctypes

I32, I64, U64, Pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p
F32, F64 = ctypes.c_float, ctypes.c_double

ABI = 2  # as in abi.h
FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
GATES = {"silu": 0, "gelu_tanh": 1, "gelu": 2}

PHASES = ("embed", "norm", "qkv", "rope", "attend", "merge", "output", "gate_up", "down", "head")
"""What `lmk_decoder_step` measures, in the order of decoder.h."""


class Linear(ctypes.Structure):
    _fields_ = (
        ("format", I32),
        ("rows", I32),
        ("columns", I32),
        ("reserved", I32),
        ("panels", Pointer),
        ("bias", Pointer),
    )


class Rope(ctypes.Structure):
    _fields_ = (("pairs", I32), ("scale", F32), ("frequencies", Pointer))


class Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("input_norm", Pointer),
        ("mlp_norm", Pointer),
        ("attention_post_norm", Pointer),
        ("mlp_post_norm", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
        ("rope", I32),
        ("window", I32),
    )


class Model(ctypes.Structure):
    _fields_ = (
        ("num_layers", I32),
        ("num_ropes", I32),
        ("vocab_size", I32),
        ("hidden", I32),
        ("hidden_size", I32),
        ("inner_size", I32),
        ("num_heads", I32),
        ("num_kv_heads", I32),
        ("head_dim", I32),
        ("head_size", I32),
        ("gate", I32),
        ("kv_format", I32),
        ("embedding_format", I32),
        ("norm_eps", F32),
        ("attention_scale", F32),
        ("attention_softcap", F32),
        ("logit_scale", F32),
        ("logit_softcap", F32),
        ("embedding_scale", F32),
        ("residual_scale", F32),
        ("num_slots", I64),
        ("ropes", ctypes.POINTER(Rope)),
        ("layers", ctypes.POINTER(Layer)),
        ("embedding", Pointer),
        ("final_norm", Pointer),
        ("head", Linear),
        ("kv", Pointer),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("num_rows", I32),
        ("num_outputs", I32),
        ("num_items", I32),
        ("reserved", I32),
        ("tokens", Pointer),
        ("positions", Pointer),
        ("slots", Pointer),
        ("logit_rows", Pointer),
        ("key_slots", Pointer),
        ("items", Pointer),
        ("logits", Pointer),
    )


class Attention(ctypes.Structure):
    _fields_ = (
        ("num_rows", I32),
        ("num_heads", I32),
        ("num_kv_heads", I32),
        ("head_size", I32),
        ("kv_format", I32),
        ("window", I32),
        ("num_items", I32),
        ("num_threads", I32),
        ("scale", F32),
        ("softcap", F32),
        ("queries", Pointer),
        ("kv", Pointer),
        ("positions", Pointer),
        ("key_slots", Pointer),
        ("items", Pointer),
        ("out", Pointer),
    )


class SampleRow(ctypes.Structure):
    _fields_ = (
        ("mask", Pointer),
        ("bias_ids", Pointer),
        ("biases", Pointer),
        ("seen_ids", Pointer),
        ("count_ids", Pointer),
        ("counts", Pointer),
        ("top_ids", Pointer),
        ("top_logprobs", Pointer),
        ("top_p", F64),
        ("min_p", F64),
        ("sequence", U64),
        ("draw", U64),
        ("mask_words", I32),
        ("num_biases", I32),
        ("num_seen", I32),
        ("num_counts", I32),
        ("num_top", I32),
        ("top_k", I32),
        ("wants_logprob", I32),
        ("repetition", F32),
        ("frequency", F32),
        ("presence", F32),
        ("temperature", F32),
        ("token", I32),
        ("found_top", I32),
        ("logprob", F32),
    )


class ScoreRow(ctypes.Structure):
    _fields_ = (
        ("logits", Pointer),
        ("top_ids", Pointer),
        ("top_logprobs", Pointer),
        ("token", I32),
        ("num_top", I32),
        ("found_top", I32),
        ("logprob", F32),
    )
