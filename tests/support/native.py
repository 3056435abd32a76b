"""The C++ library's building blocks, called on their own."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

from lmprog_kernels.cpu.library import check, load_library
from lmprog_kernels.cpu.packing import Memory, Packer, packed_bytes
from lmprog_kernels.cpu.structs import FORMATS, Attention
from tests.support.attention_oracle import Case, int8_rows


def linear(level: str, inputs: Tensor, weight: Tensor, dtype: str, *, threads: int = 1) -> Tensor:
    """inputs [rows, columns] float32 times weight [outputs, columns], all sizes multiples of 32."""
    library = load_library(level)
    memory = Memory(packed_bytes(library, dtype, *weight.shape))
    packed = Packer(library, memory).linear(weight, None, dtype)
    out = torch.full((len(inputs), len(weight)), torch.nan)
    inputs = inputs.contiguous()
    status = library.functions.lmk_linear(ctypes.byref(packed), inputs.data_ptr(), len(inputs), threads, out.data_ptr())
    check(status)
    return out


def attention(
    level: str, case: Case, *, scale: float, window: int | None = None, softcap: float | None = None, threads: int = 1
) -> Tensor:
    """[rows, heads, head_dim] float32. The head dimension must be a multiple of 32."""
    rows, heads, size = case.queries.shape
    queries, pool = (
        case.queries.float().contiguous(),
        (int8_rows(case.kv) if case.has_int8_pool else case.kv.contiguous()),
    )
    out = torch.full((rows, heads, size), torch.nan)
    arrays = [np.ascontiguousarray(a, np.int32) for a in (case.positions, case.plan.key_slots, case.plan.items)]
    request = Attention(
        rows, heads, case.kv.shape[2], size,
        FORMATS[str(pool.dtype).removeprefix("torch.")], window or 0, len(case.plan.items), threads,
        scale, softcap or 0.0,
        queries.data_ptr(), pool.data_ptr(), *(array.ctypes.data for array in arrays), out.data_ptr(),
    )  # fmt: skip
    check(load_library(level).functions.lmk_attention(ctypes.byref(request)))
    return out
