"""Writing K and V into the pool, and token masks, in Triton. See `lmprog_kernels.reference.storage`."""

from __future__ import annotations

import triton
from torch import Tensor

from lmprog_kernels.triton.kernels import mask_tokens_kernel, store_kernel


def store_kv(keys: Tensor, values: Tensor, kv: Tensor, slots: Tensor) -> None:
    """See `reference.store_kv`. All tensors must be contiguous in head_dim."""
    heads, dim = keys.shape[1:]
    store_kernel[(len(slots),)](
        keys,
        values,
        kv,
        slots,
        keys.stride(0),
        keys.stride(1),
        values.stride(0),
        values.stride(1),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        HEADS=heads,
        DIM=dim,
        BLOCK=triton.next_power_of_2(heads * dim),
    )


def apply_token_mask(logits: Tensor, masks: Tensor) -> None:
    """See `reference.apply_token_mask`."""
    rows, vocab = logits.shape
    block = 1024
    mask_tokens_kernel[(rows, triton.cdiv(vocab, block))](
        logits, masks, vocab, logits.stride(0), masks.stride(0), BLOCK=block
    )
