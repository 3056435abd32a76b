"""The hf executor: any causal language model of transformers, its own code, our attention and KV pool inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hf_check import PROBE_SLOTS, check
from lmprog_runtime.model.hf_paged import PagedModel
from lmprog_runtime.model.kv_pool import free_memory, pool_slots
from lmprog_runtime.model.weights import open_tensors
from lmprog_runtime.ops import Kernels, kernels_for
from lmprog_runtime.step import StepBatch


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
        self.dtype, self.kv_dtype, self.device = dtype, dtype, device
        kernels = kernels or kernels_for(device)
        # the self-test is sharp in float32 only, so the model is loaded twice where its memory allows
        probe_dtype = "float32" if _fits_in_float32(files, device) else dtype
        model = _load(files, probe_dtype, device)
        probe = PagedModel(model, kernels, num_slots=PROBE_SLOTS, dtype=probe_dtype, device=device)
        found = check(probe, is_exact=probe_dtype == "float32")
        if probe_dtype != dtype:
            del model, probe
            model = _load(files, dtype, device)
        self.vocab_size = found.vocab_size
        bytes_per_slot = sum(2 * heads * dim for heads, dim in found.shapes.values()) * getattr(torch, dtype).itemsize
        self.num_slots = pool_slots(num_slots, bytes_per_slot, device)
        self._paged = PagedModel(model, kernels, num_slots=self.num_slots, dtype=dtype, device=device)
        self._paged.use_pool()
        self._paged.make_pools(found.shapes)
        self.context_length = _context_length(self._paged.config, files.context_length)

    @torch.inference_mode()
    def step(self, batch: StepBatch) -> Tensor:
        return self._paged.run(batch)[0]

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        return np.concatenate([pool.read(slots) for pool in self._paged.pools.values()], axis=1)

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        start = 0
        for pool in self._paged.pools.values():
            pool.write(slots, data[:, start : start + pool.bytes_per_slot])
            start += pool.bytes_per_slot


def _load(files: ModelFiles, dtype: str, device: str) -> PreTrainedModel:
    try:
        model = load_model(files, getattr(torch, dtype), attn_implementation="eager")
    except (ValueError, KeyError, ImportError, OSError) as error:
        raise ModelUnsupported(f"transformers cannot load {files.name!r}: {error}") from error
    return model.eval().to(device)


def load_model(files: ModelFiles, dtype: torch.dtype, **settings: Any) -> PreTrainedModel:
    """transformers' own model. Where only a GGUF file has the weights, they are read from it, one after the other.

    settings: of `AutoModelForCausalLM`. Raises what transformers raises, ModelUnsupported for a tensor that is missing.
    """
    if files.has_safetensors:
        found: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            files.directory, dtype=dtype, trust_remote_code=False, local_files_only=True, **settings
        )
        return found
    config = AutoConfig.from_pretrained(files.directory, trust_remote_code=False, local_files_only=True)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, **settings)
    tensors = open_tensors(files)
    missing = {name for name, _ in model.named_parameters()} - tensors.names()
    if missing:
        raise ModelUnsupported(f"{files.gguf} lacks {min(missing)!r}, which its metadata call for.")
    unused = tensors.names() - set(model.state_dict())
    if unused:
        raise ModelUnsupported(f"{files.gguf} has {min(unused)!r}, which its metadata give no use for.")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors.get(name))
    return model


def _fits_in_float32(files: ModelFiles, device: str) -> bool:
    """Taking weights for 16-bit numbers, quantised ones for 4-bit ones, and leaving room for as much again."""
    return (16 if files.is_quantised else 4) * files.weight_bytes < free_memory(device)


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
