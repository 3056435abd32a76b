"""Writing K and V into the pool, and token masks on logits, in plain torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def store_kv(keys: Tensor, values: Tensor, kv: Tensor, slots: Tensor) -> None:
    """Put keys and values [rows, kv_heads, head_dim] into kv [slots, 2, kv_heads, head_dim] at slots [rows] (int)."""
    kv[slots.long()] = torch.stack((keys, values), dim=1).to(kv.dtype)


def apply_token_mask(logits: Tensor, masks: Tensor) -> None:
    """Set logits [rows, vocab] to -inf, in place, where masks [rows, ceil(vocab / 32)] int32 have a 0 bit.

    Bit i % 32 of word i // 32 is token i. Bits past the vocabulary are not looked at.
    """
    logits.masked_fill_(~unpack_mask(masks, logits.shape[1]), -torch.inf)


def unpack_mask(masks: Tensor, vocab_size: int) -> Tensor:
    """masks [rows, words] int32 as bool [rows, vocab_size]."""
    octets = masks.contiguous().view(torch.uint8)  # little-endian: byte b of a word holds its tokens 8 b to 8 b + 7
    if octets.device.type == "cpu":  # numpy takes 4 us for 49,152 tokens, the lines below 40
        bits = torch.from_numpy(np.unpackbits(octets.numpy(), axis=1, bitorder="little"))
    else:
        shifts = torch.arange(8, dtype=torch.uint8, device=octets.device)
        bits = ((octets.unsqueeze(-1) >> shifts) & 1).flatten(1)
    return bits.view(torch.bool)[:, :vocab_size]
