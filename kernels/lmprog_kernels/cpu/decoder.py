"""A whole decoder of the Llama family behind one native call per step."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog_kernels.cpu import structs
from lmprog_kernels.cpu.library import check
from lmprog_kernels.cpu.packed_weights import PackedWeights
from lmprog_kernels.cpu.packing import Memory, round_up
from lmprog_kernels.cpu.protocols import SpecLike
from lmprog_kernels.cpu.scratch import Recycled

Int32Array = NDArray[np.int32]


_KV_FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.int8: "int8"}


class PreparedStep(NamedTuple):
    """What a step reads and writes."""

    struct: structs.Step
    arrays: list[Int32Array]  # that `struct` points to
    logits: Tensor  # float32 [len(logit_rows), vocab_size]


def kv_slot_bytes(spec: SpecLike, dtype: torch.dtype) -> int:
    """Of a token's K and V in one layer. kv_rows.h has the layout."""
    size = 2 * spec.num_kv_heads * round_up(spec.head_dim) * dtype.itemsize
    return size if dtype != torch.int8 else round_up(size + 2 * spec.num_kv_heads * 4, 64)


class Decoder:
    """Packed weights, the KV pool, and the native step. One thread at a time.

    "int8" and "int4" weights multiply with int8 inputs in groups of 32. The pool is float32 for float32 weights and
    bfloat16 for all others, unless it is int8: K and V of each head with a scale of their own, from the token alone.
    The residual stream, sums and logits are float32. `kv` is the pool as [layers, slots, bytes of a slot] uint8.
    """

    def __init__(
        self, spec: SpecLike, weights: PackedWeights, *, num_slots: int, threads: int, int8_kv: bool = False
    ) -> None:
        self.threads = threads
        self.phase_seconds: NDArray[np.float64] | None = None  # set to zeros(len(PHASES)) to measure
        self.kv_dtype = torch.int8 if int8_kv else weights.kv_dtype
        self._spec, self._weights, self._library = spec, weights, weights.library
        slot_bytes = kv_slot_bytes(spec, self.kv_dtype)
        self._pool = Memory(spec.num_layers * num_slots * slot_bytes)
        pool = self._pool.bytes[: spec.num_layers * num_slots * slot_bytes]
        self.kv: NDArray[np.uint8] = pool.view(spec.num_layers, num_slots, slot_bytes).numpy()
        self._frequencies = [torch.tensor(rope.inverse_frequencies, dtype=torch.float32) for rope in spec.ropes]
        self._logits = Recycled()
        self._handle = self._create(num_slots)

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
        return self.run(self.prepare(tokens, positions, slots, logit_rows, key_slots, items))

    def prepare(self, *arrays: Int32Array) -> PreparedStep:
        """The arguments of `step`, for any number of runs with whatever they hold then."""
        kept = [np.ascontiguousarray(array, np.int32) for array in arrays]
        tokens, _, _, logit_rows, _, items = kept
        logits = self._logits.take(len(logit_rows), self._spec.vocab_size)
        addresses = [array.__array_interface__["data"][0] for array in kept]
        struct = structs.Step(len(tokens), len(logit_rows), len(items), 0, *addresses, logits.data_ptr())
        return PreparedStep(struct, kept, logits)

    def run(self, prepared: PreparedStep) -> Tensor:
        """The logits, in the same memory with each run."""
        step = ctypes.byref(prepared.struct)
        seconds = None if self.phase_seconds is None else self.phase_seconds.ctypes.data
        check(self._library.functions.lmk_decoder_step(self._handle, step, self.threads, seconds))
        return prepared.logits

    def _create(self, num_slots: int) -> int:
        spec, weights = self._spec, self._weights
        model = structs.Model(
            num_layers=spec.num_layers,
            num_ropes=len(spec.ropes),
            vocab_size=spec.vocab_size,
            hidden=spec.hidden_size,
            hidden_size=round_up(spec.hidden_size),
            inner_size=round_up(spec.intermediate_size),
            num_heads=spec.num_heads,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            head_size=round_up(spec.head_dim),
            gate=structs.GATES[spec.activation],
            kv_format=structs.FORMATS[_KV_FORMATS[self.kv_dtype]],
            embedding_format=structs.FORMATS[_KV_FORMATS[weights.kv_dtype]],
            norm_eps=spec.norm_eps,
            attention_scale=spec.attention_scale,
            attention_softcap=spec.attention_softcap or 0.0,
            logit_scale=spec.logit_scale,
            logit_softcap=spec.logit_softcap or 0.0,
            embedding_scale=torch.tensor(spec.embedding_scale, dtype=weights.kv_dtype).item(),
            residual_scale=spec.residual_scale,
            num_slots=num_slots,
            ropes=self._ropes(),
            layers=self._layers(),
            embedding=weights.embedding.data_ptr(),
            final_norm=weights.table.final_norm,
            head=weights.table.head,
            kv=self._pool.address,
        )
        handle: int | None = self._library.functions.lmk_decoder_new(ctypes.byref(model))
        if handle is None:
            raise MemoryError("There is not enough memory for the decoder's buffers.")
        return handle

    def _layers(self) -> ctypes.Array[structs.Layer]:
        spec = self._spec
        layers = (structs.Layer * spec.num_layers)(*self._weights.layers)
        for layer, rope, window in zip(layers, spec.layer_ropes, spec.layer_windows, strict=True):
            layer.rope, layer.window = -1 if rope is None else rope, window or 0
        return layers

    def _ropes(self) -> ctypes.Array[structs.Rope]:
        made = [
            structs.Rope(len(frequencies), rope.scale, frequencies.data_ptr())
            for rope, frequencies in zip(self._spec.ropes, self._frequencies, strict=True)
        ]
        return (structs.Rope * len(made))(*made)
