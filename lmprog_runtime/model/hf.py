"""The hf executor: any causal language model of transformers, its own code, our attention and KV pool inside.

transformers looks attention functions up by name in its AttentionInterface; ours stores K and V in the pool and attends
as the plan says, so packed, chunked and forked batches work as in the other executors. Not every model asks that
interface, and some keep other state per sequence, with at most a log warning. So each model is tested when it is
loaded, against transformers' own eager attention, and refused when it does not agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.kv_pool import KvPool, pool_slots
from lmprog_runtime.model.plain_batch import Part, plain_batch
from lmprog_runtime.ops import Kernels, Plan, Rule, kernels_for
from lmprog_runtime.step import StepBatch

_NAME = "lmprog"
_PROBE_SLOTS = 64


@dataclass
class _Step:
    """What our attention function needs while the model runs one step."""

    kernels: Kernels
    pools: dict[int, KvPool]  # one of one layer per layer: head sizes may differ between layers
    num_slots: int  # of pools that are made on first use
    slots: Tensor
    plan: Plan
    windows: dict[int, int | None] = field(default_factory=dict)  # what each layer that attended asked for


_step: ContextVar[_Step] = ContextVar("lmprog_step")


class HfExecutor:
    """See `Executor`. The constructor raises ModelUnsupported when transformers cannot load the model without running
    code that came with it, or when our attention inside does not give what its own gives."""

    name = "hf"

    def __init__(
        self,
        files: ModelFiles,
        *,
        num_slots: int | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        kernels: Kernels | None = None,
    ) -> None:
        self.dtype, self.device = dtype, device
        self._kernels = kernels or kernels_for(device)
        self._model = _load(files, dtype, device)
        self._config = self._model.config.get_text_config()
        self.context_length = _context_length(self._config, files.context_length)
        self._pools: dict[int, KvPool] = {}
        self.num_slots = _PROBE_SLOTS
        self.vocab_size = self._self_test()
        self.num_slots = pool_slots(num_slots, sum(pool.bytes_per_slot for pool in self._pools.values()), device)
        self._pools = {layer: pool.resized(self.num_slots) for layer, pool in sorted(self._pools.items())}

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> Tensor:
        return self._run(batch)[0]

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        return np.concatenate([pool.read(slots) for pool in self._pools.values()], axis=1)

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        start = 0
        for pool in self._pools.values():
            pool.write(slots, data[:, start : start + pool.bytes_per_slot])
            start += pool.bytes_per_slot

    def _run(self, batch: StepBatch) -> tuple[Tensor, _Step]:
        plan = self._kernels.prepare_plan(batch.plan.key_slots, batch.plan.items, batch.positions, self.device)
        step = _Step(self._kernels, self._pools, self.num_slots, self._on_device(batch.slots), plan)
        token = _step.set(step)
        try:
            logits = self._forward(batch.tokens, batch.positions, batch.logit_rows)
        finally:
            _step.reset(token)
        return logits, step

    def _forward(self, tokens: NDArray[np.int32], positions: NDArray[np.int32], rows: NDArray[np.int32]) -> Tensor:
        out = self._model(
            input_ids=self._on_device(tokens).long().unsqueeze(0),
            position_ids=self._on_device(positions).long().unsqueeze(0),
            use_cache=False,
            logits_to_keep=self._on_device(rows).long(),
        )
        logits: Tensor = out.logits[0]
        kept = logits if len(logits) == len(rows) else logits[self._on_device(rows)]  # not every model knows the option
        return kept.float()

    def _on_device(self, values: NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    # -- self-test --------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _self_test(self) -> int:
        """Two sequences packed into extend, mixed and decode steps against each alone in eager attention. Returns the
        number of columns of the logits."""
        first, second = _probe_tokens(self._config, 21), _probe_tokens(self._config, 13)[::-1].copy()
        expected_first, expected_second = self._eager(first), self._eager(second)
        self._model.set_attn_implementation(_NAME)
        slots = np.arange(_PROBE_SLOTS, dtype=np.int32)[::-1]
        first_slots, second_slots = slots[::2][:21], slots[1::2][:13]
        worst, start, other = 0.0, 0, 0
        for end, other_end in ((16, 10), (20, 11), (21, 12)):
            parts = [
                Part(first[start:end], first_slots[:end]),
                Part(second[other:other_end], second_slots[:other_end]),
            ]
            logits, step = self._run(plain_batch(parts))
            self._check_layers(step.windows)
            expected = torch.cat([expected_first[start:end], expected_second[other:other_end]])
            worst = max(worst, float((logits - expected).abs().max()))
            start, other = end, other_end
        limit = _tolerance(self.dtype) * max(1.0, float(expected_first.abs().max()))
        if not worst <= limit:  # a NaN is not
            raise _refusal(self._config, f"its logits in a packed batch are off by {worst:.2g} (allowed: {limit:.2g})")
        return expected_first.shape[1]

    def _eager(self, tokens: NDArray[np.int32]) -> Tensor:
        rows = np.arange(len(tokens), dtype=np.int32)
        return self._forward(tokens, rows, rows)

    def _check_layers(self, windows: Mapping[int, int | None]) -> None:
        """Every layer must have attended through us, with the window that the config gives it."""
        expected = _expected_windows(self._config)
        if len(windows) != len(expected):
            raise _refusal(self._config, f"{len(windows)} of its {len(expected)} layers use the attention interface")
        for layer, window in expected.items():
            if windows.get(layer) != window:
                raise _refusal(self._config, f"layer {layer} attends with window {windows.get(layer)}, not {window}")


def _load(files: ModelFiles, dtype: str, device: str) -> PreTrainedModel:
    try:
        model = AutoModelForCausalLM.from_pretrained(
            files.directory,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            trust_remote_code=False,
            local_files_only=True,
        )
    except (ValueError, KeyError, ImportError, OSError) as error:
        raise ModelUnsupported(f"transformers cannot load {files.name!r}: {error}") from error
    return model.eval().to(device)


def _context_length(config: Any, listed: int) -> int:
    """Shorter than listed where the model changes its own positions or masks with the length of the sequence, which
    no KV cache can follow: beyond the original length of a longrope, and beyond an attention chunk."""
    limits = [listed]
    if getattr(config, "attention_chunk_size", None):
        limits.append(config.attention_chunk_size)
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if parameters.get("rope_type") == "longrope":
            limits.append(int(parameters["original_max_position_embeddings"]))
    return min(limits)


def _expected_windows(config: Any) -> dict[int, int | None]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return dict.fromkeys(range(config.num_hidden_layers), window)
    return {layer: window if kind == "sliding_attention" else None for layer, kind in enumerate(kinds)}


def _probe_tokens(config: Any, count: int) -> NDArray[np.int32]:
    """Distinct ids spread over the vocabulary, without padding, which some models treat apart."""
    padding = getattr(config, "pad_token_id", None)
    ids = [number * 7919 % config.vocab_size for number in range(1, count + 2)]
    return np.array([token_id for token_id in ids if token_id != padding][:count], np.int32)


def _tolerance(dtype: str) -> float:
    """Relative to the largest logit. A model that mixes its sequences up is off by about 1."""
    return 1e-3 if dtype == "float32" else 0.08


def _refusal(config: Any, reason: str) -> ModelUnsupported:
    return ModelUnsupported(f"transformers' {config.model_type!r} cannot run with this runtime's KV pool: {reason}.")


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
        step.pools[layer] = KvPool(1, step.num_slots, *keys.shape[1:], dtype=keys.dtype, device=str(keys.device))
    kv = step.pools[layer].layer(0)
    # V may be narrower than K (multi-head latent attention); a row of the pool has room for two of K's width
    step.kernels.store_kv(keys, functional.pad(values, (0, keys.shape[-1] - values.shape[-1])), kv, step.slots)
    rule = Rule(rows.shape[-1] ** -0.5 if scaling is None else scaling, sliding_window, softcap)
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    out = step.kernels.plan_attention(rows, kv, step.plan, rule, sinks)
    return out[..., : values.shape[-1]].unsqueeze(0), None


AttentionInterface.register(_NAME, _attend)
