"""The torch executor: a lean eager decoder for every model that has a `ModelSpec`, on CPU and CUDA.

In float32 it is the oracle of the other executors. In 16-bit types the residual stream, norms, RoPE, softmax and logits
stay float32; only matrix products and the KV pool are 16 bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lmprog_runtime.model.kv_pool import KvPool
from lmprog_runtime.model.model_spec import ModelSpec
from lmprog_runtime.model.weights import LayerWeights, ModelWeights
from lmprog_runtime.ops import Kernels, Plan, Rule, kernels_for
from lmprog_runtime.step import StepBatch

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
}


class _Step(NamedTuple):
    """What all layers of one step share."""

    slots: Tensor  # [rows]
    plan: Plan
    rotations: list[tuple[Tensor, Tensor]]  # per rope: cosine and sine, each [rows, 1, rotary_dim / 2] float32


class TorchExecutor:
    """See `Executor`. The weights are converted to `dtype`, except the head, which stays float32 so that logits are."""

    name = "torch"

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        *,
        num_slots: int,
        dtype: str = "float32",
        device: str = "cpu",
        kernels: Kernels | None = None,
    ) -> None:
        self.spec, self.dtype, self.device, self.num_slots = spec, dtype, device, num_slots
        self.kv_dtype = dtype
        self.vocab_size, self.context_length = spec.vocab_size, spec.context_length
        self._kernels = kernels or kernels_for(device)
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._embedding = weights.embedding().to(device, self._dtype)
        self._head = weights.head().to(device, torch.float32)
        self._final_norm = weights.final_norm().to(device)
        self._layers = [self._convert(weights.layer(index)) for index in range(spec.num_layers)]
        self._frequencies = [torch.tensor(rope.inverse_frequencies, device=device) for rope in spec.ropes]
        self._rules = [Rule(spec.attention_scale, window, spec.attention_softcap) for window in spec.layer_windows]
        self.pool = KvPool(
            spec.num_layers, num_slots, spec.num_kv_heads, spec.head_dim, dtype=self._dtype, device=device
        )

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        return self.pool.read(slots)

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        self.pool.write(slots, data)

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> Tensor:
        positions = self._on_device(batch.positions)
        plan = self._kernels.prepare_plan(batch.plan.key_slots, batch.plan.items, batch.positions, self.device)
        step = _Step(self._on_device(batch.slots), plan, self._rotations(positions))
        scale = torch.tensor(self.spec.embedding_scale, dtype=self._dtype).item()  # rounded as the model was trained
        hidden = functional.embedding(self._on_device(batch.tokens), self._embedding).float() * scale
        for index, layer in enumerate(self._layers):
            hidden = hidden + self._attention(hidden, layer, index, step) * self.spec.residual_scale
            hidden = hidden + self._mlp(hidden, layer) * self.spec.residual_scale
        return self._logits(hidden[self._on_device(batch.logit_rows)])

    def _attention(self, hidden: Tensor, layer: LayerWeights, index: int, step: _Step) -> Tensor:
        """[rows, hidden] float32"""
        spec = self.spec
        normed = self._norm(hidden, layer.input_norm).to(self._dtype)
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias).float().view(len(hidden), -1, spec.head_dim)
        queries, keys, values = qkv.tensor_split((spec.num_heads, spec.num_heads + spec.num_kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            queries, keys = self._norm(queries, layer.q_norm), self._norm(keys, layer.k_norm)
        rope = spec.layer_ropes[index]
        if rope is not None:
            queries, keys = (_rotate(part, *step.rotations[rope]) for part in (queries, keys))
        kv = self.pool.layer(index)
        self._kernels.store_kv(keys, values, kv, step.slots)
        mixed = self._kernels.plan_attention(queries.to(self._dtype), kv, step.plan, self._rules[index])
        out = functional.linear(mixed.flatten(1), layer.output, layer.output_bias).float()
        return out if layer.attention_post_norm is None else self._norm(out, layer.attention_post_norm)

    def _mlp(self, hidden: Tensor, layer: LayerWeights) -> Tensor:
        """[rows, hidden] float32"""
        normed = self._norm(hidden, layer.mlp_norm).to(self._dtype)
        gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        out = functional.linear(_ACTIVATIONS[self.spec.activation](gate) * up, layer.down, layer.down_bias).float()
        return out if layer.mlp_post_norm is None else self._norm(out, layer.mlp_post_norm)

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = functional.linear(self._norm(hidden, self._final_norm), self._head) * self.spec.logit_scale
        cap = self.spec.logit_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(values, weight.shape, weight, self.spec.norm_eps)

    def _rotations(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        found = []
        for rope, frequencies in zip(self.spec.ropes, self._frequencies, strict=True):
            angles = positions.float().unsqueeze(1) * frequencies
            found.append(((angles.cos() * rope.scale).unsqueeze(1), (angles.sin() * rope.scale).unsqueeze(1)))
        return found

    def _on_device(self, values: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _convert(self, layer: LayerWeights) -> LayerWeights:
        """Norms stay float32."""
        given = {name: tensor for name, tensor in layer._asdict().items() if tensor is not None}
        return layer._replace(
            **{
                name: tensor.to(self.device, torch.float32 if "norm" in name else self._dtype)
                for name, tensor in given.items()
            }
        )


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """heads [rows, heads, head_dim] float32"""
    half = cosine.shape[-1]
    first, second, rest = heads.tensor_split((half, 2 * half), dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), dim=-1)
