"""Storage of keys and values, one row per token and layer. Who owns which slot is the cache manager's business."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class KvPool:
    """`data` is [layers, slots, 2, kv_heads, head_dim]: K and V of a token lie in one row, so that reading a scattered
    token costs one run of memory and not two (measured on a CPU: 12.7 GB/s for rows of 384 bytes, 16.9 for 768)."""

    def __init__(
        self, layers: int, slots: int, kv_heads: int, head_dim: int, *, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        # zeros, not empty: padded reads touch unused slots, and 0 * NaN is NaN; the pages stay untouched until used
        self.data = torch.zeros(layers, slots, 2, kv_heads, head_dim, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        return self.data.shape[1]

    @property
    def bytes_per_slot(self) -> int:
        return self.data[:, 0].numel() * self.data.element_size()

    def layer(self, index: int) -> Tensor:
        """[slots, 2, kv_heads, head_dim], a view"""
        return self.data[index]

    def read(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        """[len(slots), bytes_per_slot]: the raw bytes of each slot, layer after layer."""
        rows = self.data[:, self._index(slots)].transpose(0, 1).contiguous()
        return rows.view(torch.uint8).reshape(len(slots), self.bytes_per_slot).cpu().numpy()

    def write(self, slots: NDArray[np.int32], rows: NDArray[np.uint8]) -> None:
        """Put back what `read` gave, into the same or other slots."""
        layers, _, *row = self.data.shape
        raw = torch.from_numpy(np.ascontiguousarray(rows)).view(self.data.dtype)
        values = raw.reshape(len(slots), layers, *row).to(self.data.device)
        self.data[:, self._index(slots)] = values.transpose(0, 1)

    def _index(self, slots: NDArray[np.int32]) -> Tensor:
        return torch.as_tensor(slots, dtype=torch.long, device=self.data.device)
