"""Blocks of KV in memory, bounded by bytes, least recently used first out. Safe to use from two threads."""

from __future__ import annotations

import threading
from collections import OrderedDict


class HostTier:
    name = "host"

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._blocks: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return key in self._blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def items(self) -> list[tuple[str, bytes]]:
        """Least recently used first; a copy."""
        with self._lock:
            return list(self._blocks.items())

    def get(self, key: str) -> bytes | None:
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: str, block: bytes) -> list[tuple[str, bytes]]:
        """Returns what had to leave for it; the block itself when it is larger than the tier."""
        with self._lock:
            if key in self._blocks:
                self._blocks.move_to_end(key)
                return []
            self._blocks[key] = block
            self.used_bytes += len(block)
            dropped = []
            while self.used_bytes > self.max_bytes:
                oldest = self._blocks.popitem(last=False)
                self.used_bytes -= len(oldest[1])
                dropped.append(oldest)
            return dropped

    def clear(self) -> None:
        with self._lock:
            self._blocks.clear()
            self.used_bytes = 0
