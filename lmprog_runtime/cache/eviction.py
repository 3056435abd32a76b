"""Which leaf goes first: policies, and a heap that is kept up to date instead of being rebuilt.

An entry is pushed when a leaf becomes evictable. Use of a node only changes its key upward, so a stale entry is
noticed when it is popped and pushed again: O(log n) per leaf, with no walk over the tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from lmprog_runtime.cache.node import Node

Rank = tuple[float, ...]
Policy = Callable[[Node], Rank]
"""Rank of a node: the smallest goes first."""


def lru(node: Node) -> Rank:
    return (node.used,)


class _Entry(NamedTuple):
    rank: Rank
    serial: int
    stamp: int
    node: Node


class EvictionHeap:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._entries: list[_Entry] = []
        self._stamp = 0

    def offer(self, node: Node) -> None:
        """A leaf under no lock. One that still has an entry keeps it."""
        if node.stamp < 0:
            self._push(node)

    def pop(self) -> Node | None:
        """The next leaf to evict; None when nothing can be. A leaf that stays in the tree must be offered again."""
        while self._entries:
            entry = heapq.heappop(self._entries)
            node = entry.node
            if entry.stamp != node.stamp:
                continue
            node.stamp = -1
            if node.parent is None or node.locks or not node.is_leaf:
                continue
            if self._policy(node) > entry.rank:
                self._push(node)
                continue
            return node
        return None

    def clear(self) -> None:
        for entry in self._entries:
            entry.node.stamp = -1
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)

    def _push(self, node: Node) -> None:
        self._stamp += 1
        node.stamp = self._stamp
        heapq.heappush(self._entries, _Entry(self._policy(node), node.serial, self._stamp, node))
