"""What the engine needs of a model: one call per step. And the choice between the implementations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.kv_pool import pool_slots
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.weights import open_checkpoint
from lmprog_runtime.step import StepBatch

log = logging.getLogger("lmprog.model")

ExecutorKind = Literal["auto", "cpu", "torch", "hf"]
KV_CACHE_DTYPES = ("auto", "int8")
FLOAT_DTYPES = ("float32", "bfloat16", "float16")


class Executor(Protocol):
    """A loaded model with its KV pool. One thread at a time."""

    name: str  # "cpu", "torch" or "hf"
    vocab_size: int  # columns of the logits
    context_length: int  # tokens; positions must be below it
    num_slots: int  # slots of the KV pool, 0 to num_slots - 1
    device: str
    dtype: str  # of the weights: "float32", "bfloat16", "int8", ...
    kv_dtype: str  # of the KV pool: "float32", "bfloat16", "float16" or "int8"

    def step(self, batch: StepBatch) -> Tensor:
        """Store the K and V of every row, attend as the plan says. Returns float32 [len(logit_rows), vocab_size], which
        the next step may overwrite if it is given the very same batch."""
        ...

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        """[len(slots), bytes per slot]: all layers' K and V of each slot, as raw bytes that `write_kv` takes back."""
        ...

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Fill slots with what `read_kv` of an executor of the same model, dtype and type of KV gave."""
        ...


class _Settings(NamedTuple):
    dtype: str
    device: str
    threads: int
    num_slots: int | None
    int8_kv: bool


def load_executor(
    files: ModelFiles,
    *,
    kind: ExecutorKind = "auto",
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    num_slots: int | None = None,
    kv_cache_dtype: str = "auto",
) -> Executor:
    """Load a model. `kind` "auto" takes the first of cpu, torch and hf that can run it here.

    dtype: "auto" is bfloat16 where the processor computes in it, else float32; for a quantised GGUF file on the cpu
    executor it is "gguf", the numbers that the file stores. int8, int4 and gguf need that executor.
    num_slots: None gives 65,536, or as many as fit half of the free memory.
    kv_cache_dtype: "auto" is the type that attention computes in; "int8" takes about half the memory of bfloat16 and
    needs the cpu executor.
    Raises ModelUnsupported with every executor's reason when none can run the model, ValueError for an unknown
    kv_cache_dtype.
    """
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r}; known: {', '.join(KV_CACHE_DTYPES)}.")
    device = default_device() if device == "auto" else device
    threads = threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    dtype = _auto_dtype(files, kind, device) if dtype == "auto" else dtype
    settings = _Settings(dtype, device, threads, num_slots, kv_cache_dtype == "int8")
    refusals: list[str] = []
    for name in _LOADERS if kind == "auto" else (kind,):
        try:
            return _LOADERS[name](files, settings)
        except ModelUnsupported as refusal:
            log.info("the %s executor does not run %s: %s", name, files.name, refusal)
            refusals.append(f"{name}: {refusal}")
    raise ModelUnsupported(f"No executor can run {files.name!r} here. " + " ".join(refusals))


def _auto_dtype(files: ModelFiles, kind: ExecutorKind, device: str) -> str:
    from lmprog_runtime.ops.native import is_native_available

    runs_native = kind in ("auto", "cpu") and device == "cpu" and files.is_quantised and is_native_available()
    return "gguf" if runs_native else default_dtype(device)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def default_dtype(device: str) -> str:
    """bfloat16 where the processor multiplies in it (AVX-512 BF16, AMX, Arm BF16, CUDA from Ampere on)."""
    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float16"
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return "bfloat16" if flags & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"


def _load_cpu(files: ModelFiles, settings: _Settings) -> Executor:
    if settings.device != "cpu":
        raise ModelUnsupported(f"It runs on the CPU only, not on {settings.device}.")
    from lmprog_runtime.model.cpu_executor import CpuExecutor, check_native_dtype
    from lmprog_runtime.model.packed_files import packed_weights
    from lmprog_runtime.ops.native import is_native_available, kv_slot_bytes

    if not is_native_available():
        raise ModelUnsupported("Its C++ library was not built, or this processor cannot run it.")
    check_native_dtype(settings.dtype)
    spec = read_spec(files.directory)
    weights = packed_weights(files, spec, settings.dtype)
    kv_dtype = torch.int8 if settings.int8_kv else weights.kv_dtype
    slots = pool_slots(settings.num_slots, spec.num_layers * kv_slot_bytes(spec, kv_dtype), settings.device)
    return CpuExecutor(
        spec,
        weights,
        num_slots=slots,
        dtype=settings.dtype,
        threads=settings.threads,
        int8_kv=settings.int8_kv,
    )


def _load_torch(files: ModelFiles, settings: _Settings) -> Executor:
    from lmprog_runtime.model.decoder import TorchExecutor

    _check_dtype(settings)
    spec = read_spec(files.directory)
    weights = open_checkpoint(files, spec)
    bytes_per_slot = spec.num_layers * 2 * spec.num_kv_heads * spec.head_dim * getattr(torch, settings.dtype).itemsize
    slots = pool_slots(settings.num_slots, bytes_per_slot, settings.device)
    return TorchExecutor(spec, weights, num_slots=slots, dtype=settings.dtype, device=settings.device)


def _load_hf(files: ModelFiles, settings: _Settings) -> Executor:
    from lmprog_runtime.model.hf import HfExecutor

    _check_dtype(settings)
    return HfExecutor(files, num_slots=settings.num_slots, dtype=settings.dtype, device=settings.device)


def _check_dtype(settings: _Settings) -> None:
    if settings.dtype not in FLOAT_DTYPES:
        raise ModelUnsupported(f"It computes in {', '.join(FLOAT_DTYPES)}, not in {settings.dtype}.")
    if settings.int8_kv:
        raise ModelUnsupported("It keeps KV in the type it computes in, not in int8; use kv_cache_dtype='auto'.")


_LOADERS: dict[str, Callable[[ModelFiles, _Settings], Executor]] = {
    "cpu": _load_cpu,
    "torch": _load_torch,
    "hf": _load_hf,
}
"""In the order in which "auto" tries them."""
