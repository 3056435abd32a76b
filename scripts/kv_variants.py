"""Names of dtypes with an int8 KV pool, and random contents for pools of any kind. For the other scripts."""

from __future__ import annotations

import numpy as np
import torch

from lmprog_runtime.model.cpu_executor import CpuExecutor

INT8_KV = "+int8kv"


def split_dtype(name: str) -> tuple[str, bool]:
    """The dtype of the weights, and whether the KV pool is in int8: ("bfloat16", True) for "bfloat16+int8kv"."""
    return name.removesuffix(INT8_KV), name.endswith(INT8_KV)


def fill(executor: CpuExecutor, deviation: float = 1.0) -> None:
    """Random KV of a standard deviation: untouched pages would all be one page of zeros."""
    kv, dtype = executor.decoder.kv, executor.decoder.kv_dtype
    if dtype != torch.int8:
        patterns = torch.randn(kv.shape[1], kv.shape[2] // dtype.itemsize) * deviation
        kv[:] = patterns.to(dtype).view(torch.uint8).numpy()
        return
    kv[:] = torch.randint(-127, 128, kv.shape[1:], dtype=torch.int8).view(torch.uint8).numpy()
    elements = 2 * executor.spec.num_kv_heads * -(-executor.spec.head_dim // 32) * 32
    kv[:, :, elements:].view(np.float32)[:] = deviation * np.sqrt(3) / 127  # of a uniform distribution
