"""A whole decoder of the Llama family behind one native call per step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog_kernels.cpu import structs
from lmprog_kernels.cpu.library import check, load_library
from lmprog_kernels.cpu.packing import Memory, Packer, packed_bytes, pad_columns, pad_rows, round_up

Int32Array = NDArray[np.int32]


class RopeLike(Protocol):
    @property
    def inverse_frequencies(self) -> tuple[float, ...]: ...
    @property
    def scale(self) -> float: ...


class SpecLike(Protocol):
    """The sizes and factors of a model; lmprog_runtime's ModelSpec says what each does."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def activation(self) -> str: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def attention_scale(self) -> float: ...
    @property
    def attention_softcap(self) -> float | None: ...
    @property
    def logit_softcap(self) -> float | None: ...
    @property
    def logit_scale(self) -> float: ...
    @property
    def embedding_scale(self) -> float: ...
    @property
    def residual_scale(self) -> float: ...
    @property
    def ropes(self) -> Sequence[RopeLike]: ...
    @property
    def layer_ropes(self) -> Sequence[int | None]: ...
    @property
    def layer_windows(self) -> Sequence[int | None]: ...


class LayerLike(Protocol):
    """The tensors of a layer; lmprog_runtime's LayerWeights gives the shapes."""

    @property
    def input_norm(self) -> Tensor: ...
    @property
    def qkv(self) -> Tensor: ...
    @property
    def qkv_bias(self) -> Tensor | None: ...
    @property
    def q_norm(self) -> Tensor | None: ...
    @property
    def k_norm(self) -> Tensor | None: ...
    @property
    def output(self) -> Tensor: ...
    @property
    def output_bias(self) -> Tensor | None: ...
    @property
    def attention_post_norm(self) -> Tensor | None: ...
    @property
    def mlp_norm(self) -> Tensor: ...
    @property
    def gate_up(self) -> Tensor: ...
    @property
    def gate_up_bias(self) -> Tensor | None: ...
    @property
    def down(self) -> Tensor: ...
    @property
    def down_bias(self) -> Tensor | None: ...
    @property
    def mlp_post_norm(self) -> Tensor | None: ...


class WeightsLike(Protocol):
    def embedding(self) -> Tensor: ...
    def head(self) -> Tensor: ...
    def final_norm(self) -> Tensor: ...
    def layer(self, index: int) -> LayerLike: ...


DTYPES = tuple(structs.FORMATS)
_HEAD_DTYPES = {"int4": "int8"}  # of the head, where it differs from the layers'


class Decoder:
    """Packed weights, the KV pool, and the native step. One thread at a time.

    dtype: of the weights, one of DTYPES. "int8" has groups of 32 inputs with a float16 scale (Q8_0 of GGUF), "int4" the
    same with a minimum (Q4_1), and its head is int8; both multiply with int8 inputs in groups of 32. The pool is
    float32 for float32 and bfloat16 for all others. The residual stream, sums and logits are float32. `kv` is the pool
    as [layers, slots, bytes of a slot] uint8.
    """

    def __init__(
        self,
        spec: SpecLike,
        weights: WeightsLike,
        *,
        dtype: str,
        num_slots: int,
        threads: int,
        level: str | None = None,
    ) -> None:
        self.threads = threads
        self.phase_seconds: NDArray[np.float64] | None = None  # set to zeros(len(PHASES)) to measure
        self._spec, self._dtype, self._head_dtype = spec, dtype, _HEAD_DTYPES.get(dtype, dtype)
        self._library = load_library(level)
        self._memory = Memory(self._weight_bytes())
        self._packer = Packer(self._library, self._memory)
        self.kv_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        slot_bytes = 2 * spec.num_kv_heads * round_up(spec.head_dim) * self.kv_dtype.itemsize
        self._pool = Memory(spec.num_layers * num_slots * slot_bytes)
        pool = self._pool.bytes[: spec.num_layers * num_slots * slot_bytes]
        self.kv: NDArray[np.uint8] = pool.view(spec.num_layers, num_slots, slot_bytes).numpy()
        self._handle = self._create(weights, num_slots)

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            self._library.functions.lmk_decoder_free(handle)

    @property
    def level(self) -> str:
        """The instruction set in use."""
        return self._library.level

    def step(
        self,
        tokens: Int32Array,
        positions: Int32Array,
        slots: Int32Array,
        logit_rows: Int32Array,
        key_slots: Int32Array,
        items: Int32Array,
    ) -> Tensor:
        """Arrays as in `StepBatch`. Returns float32 [len(logit_rows), vocab_size]."""
        arrays = [np.ascontiguousarray(a, np.int32) for a in (tokens, positions, slots, logit_rows, key_slots, items)]
        logits = torch.empty(len(logit_rows), self._spec.vocab_size)
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        step = structs.Step(len(tokens), len(logit_rows), len(items), 0, *addresses, logits.data_ptr())
        seconds = None if self.phase_seconds is None else self.phase_seconds.ctypes.data
        check(self._library.functions.lmk_decoder_step(self._handle, ctypes.byref(step), self.threads, seconds))
        return logits

    def _weight_bytes(self) -> int:
        spec = self._spec
        hidden, inner, head_size = spec.hidden_size, round_up(spec.intermediate_size), round_up(spec.head_dim)
        mixed, qkv = spec.num_heads * head_size, (spec.num_heads + 2 * spec.num_kv_heads) * head_size
        shapes = ((qkv, hidden), (hidden, mixed), (2 * inner, hidden), (hidden, inner))
        layer = sum(packed_bytes(self._library, self._dtype, *shape) for shape in shapes)
        return spec.num_layers * layer + packed_bytes(self._library, self._head_dtype, spec.vocab_size, hidden)

    def _create(self, weights: WeightsLike, num_slots: int) -> int:
        spec, packer = self._spec, self._packer
        embedding = weights.embedding().to(self.kv_dtype)
        kv_format = structs.FORMATS["float32" if self.kv_dtype == torch.float32 else "bfloat16"]
        layers = (structs.Layer * spec.num_layers)(
            *(self._layer(weights.layer(index), index) for index in range(spec.num_layers))
        )
        ropes = (structs.Rope * len(spec.ropes))(*(self._rope(rope) for rope in spec.ropes))
        model = structs.Model(
            num_layers=spec.num_layers,
            num_ropes=len(ropes),
            vocab_size=spec.vocab_size,
            hidden=spec.hidden_size,
            hidden_size=round_up(spec.hidden_size),
            inner_size=round_up(spec.intermediate_size),
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            head_size=round_up(spec.head_dim),
            gate=structs.GATES[spec.activation],
            kv_format=kv_format,
            embedding_format=kv_format,
            norm_eps=spec.norm_eps,
            attention_scale=spec.attention_scale,
            attention_softcap=spec.attention_softcap or 0.0,
            logit_scale=spec.logit_scale,
            logit_softcap=spec.logit_softcap or 0.0,
            embedding_scale=torch.tensor(spec.embedding_scale, dtype=self.kv_dtype).item(),
            residual_scale=spec.residual_scale,
            num_slots=num_slots,
            ropes=ropes,
            layers=layers,
            embedding=packer.keep(embedding),
            final_norm=packer.vector(weights.final_norm()),
            head=packer.linear(weights.head(), None, self._head_dtype),
            kv=self._pool.address,
        )
        handle: int | None = self._library.functions.lmk_decoder_new(ctypes.byref(model))
        if handle is None:
            raise MemoryError("There is not enough memory for the decoder's buffers.")
        return handle

    def _layer(self, layer: LayerLike, index: int) -> structs.Layer:
        spec, packer, dtype = self._spec, self._packer, self._dtype
        heads = spec.num_heads + 2 * spec.num_kv_heads
        qkv_bias = None if layer.qkv_bias is None else pad_rows(layer.qkv_bias, heads)
        rope = spec.layer_ropes[index]
        return structs.Layer(
            qkv=packer.linear(pad_rows(layer.qkv, heads), qkv_bias, dtype),
            output=packer.linear(pad_columns(layer.output, spec.num_heads), layer.output_bias, dtype),
            gate_up=packer.linear(layer.gate_up, layer.gate_up_bias, dtype, interleave=True),
            down=packer.linear(layer.down, layer.down_bias, dtype),
            input_norm=packer.vector(layer.input_norm),
            mlp_norm=packer.vector(layer.mlp_norm),
            attention_post_norm=packer.vector(layer.attention_post_norm),
            mlp_post_norm=packer.vector(layer.mlp_post_norm),
            q_norm=packer.vector(layer.q_norm),
            k_norm=packer.vector(layer.k_norm),
            rope=-1 if rope is None else rope,
            window=spec.layer_windows[index] or 0,
        )

    def _rope(self, rope: RopeLike) -> structs.Rope:
        frequencies = torch.tensor(rope.inverse_frequencies, dtype=torch.float32)
        return structs.Rope(len(frequencies), rope.scale, self._packer.keep(frequencies))
