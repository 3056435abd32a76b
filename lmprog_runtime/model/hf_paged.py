"""A transformers model whose attention runs on our KV pool. Knows no executor and does not judge what comes out.

transformers looks attention functions up by name in its AttentionInterface; ours stores K and V in the pool and attends
as the plan of the current step says. Without a mask function under that name, transformers builds no mask.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from lmprog_runtime.model.kv_pool import KvPool
from lmprog_runtime.ops import Kernels, Plan, Rule
from lmprog_runtime.step import StepBatch

_NAME = "lmprog"


class RowShape(NamedTuple):
    """Of a layer's keys; values may be narrower."""

    kv_heads: int
    head_dim: int


@dataclass
class _Step:
    """What our attention function needs while the model runs one step."""

    kernels: Kernels
    pools: dict[int, KvPool]
    dtype: torch.dtype
    num_slots: int
    slots: Tensor
    plan: Plan
    windows: dict[int, int | None] = field(default_factory=dict)


_step: ContextVar[_Step] = ContextVar("lmprog_step")


class PagedModel:
    """Pools have one layer each, since head sizes may differ between layers; they are made when a layer first runs."""

    def __init__(self, model: PreTrainedModel, kernels: Kernels, *, num_slots: int, dtype: str, device: str) -> None:
        self.model, self.config = model, model.config.get_text_config()
        self.pools: dict[int, KvPool] = {}
        self.num_slots = num_slots
        self._kernels, self._device = kernels, device
        self._dtype: torch.dtype = getattr(torch, dtype)

    def eager(self, tokens: NDArray[np.int32]) -> Tensor:
        """Float32 logits [tokens, vocab] of one sequence with transformers' own attention; before `use_pool` only."""
        rows = np.arange(len(tokens), dtype=np.int32)
        return self._forward(tokens, rows, rows)

    def use_pool(self) -> None:
        self.model.set_attn_implementation(_NAME)

    def make_pools(self, shapes: dict[int, RowShape]) -> None:
        for layer, shape in shapes.items():
            self.pools[layer] = KvPool(1, self.num_slots, *shape, dtype=self._dtype, device=self._device)

    def shapes(self) -> dict[int, RowShape]:
        """Of every layer that has run, in order."""
        return {layer: RowShape(*pool.data.shape[3:]) for layer, pool in sorted(self.pools.items())}

    def run(self, batch: StepBatch) -> tuple[Tensor, dict[int, int | None]]:
        """(float32 logits of the rows asked for, the window with which each layer attended)."""
        plan = self._kernels.prepare_plan(batch.plan.key_slots, batch.plan.items, batch.positions, self._device)
        slots = self._on_device(batch.slots)
        step = _Step(self._kernels, self.pools, self._dtype, self.num_slots, slots, plan)
        token = _step.set(step)
        try:
            return self._forward(batch.tokens, batch.positions, batch.logit_rows), step.windows
        finally:
            _step.reset(token)

    def _forward(self, tokens: NDArray[np.int32], positions: NDArray[np.int32], rows: NDArray[np.int32]) -> Tensor:
        out = self.model(
            input_ids=self._on_device(tokens).long().unsqueeze(0),
            position_ids=self._on_device(positions).long().unsqueeze(0),
            use_cache=False,
            logits_to_keep=self._on_device(rows).long(),
        )
        logits: Tensor = out.logits[0]
        kept = logits if len(logits) == len(rows) else logits[self._on_device(rows)]  # not every model knows the option
        return kept.float()

    def _on_device(self, values: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Our entry in the AttentionInterface: query [1, heads, rows, head_dim], key and value [1, kv_heads, rows, dim].

    Returns [1, rows, heads, dim of value]. Other keyword arguments are for training, or are without effect on a model
    that passes the self-test.
    """
    step = _step.get()
    rows, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    layer = module.layer_idx
    step.windows[layer] = sliding_window
    if layer not in step.pools:
        step.pools[layer] = KvPool(1, step.num_slots, *keys.shape[1:], dtype=step.dtype, device=str(keys.device))
    kv = step.pools[layer].layer(0)
    # V may be narrower than K (multi-head latent attention); a row of the pool has room for two of K's width
    step.kernels.store_kv(keys, functional.pad(values, (0, keys.shape[-1] - values.shape[-1])), kv, step.slots)
    rule = Rule(rows.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    out = step.kernels.plan_attention(rows, kv, step.plan, rule, sinks)
    return out[..., : values.shape[-1]].unsqueeze(0), None


AttentionInterface.register(_NAME, _attend)
