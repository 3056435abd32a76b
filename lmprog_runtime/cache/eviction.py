"""Which leaf goes first: policies, and a heap that is kept up to date instead of being rebuilt.

An entry is pushed when a leaf becomes evictable. Use of a node only moves its rank up, so a stale entry is noticed when
it is popped and pushed again: O(log n) per leaf, with no walk over the tree. Where a rank moves down (a hint), the leaf
is demoted: its old entry becomes void.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from lmprog_runtime.cache.node import Node
from lmprog_runtime.cache.registry import named

Rank = tuple[float, ...]
Policy = Callable[[Node], Rank]
"""Rank of a node: the smallest goes first."""

_ATTENTION_SCALE = 4096.0
"""Position from which on a token's attention costs as much as the rest of its forward pass; only the order matters."""


def lru(node: Node) -> Rank:
    return (node.used,)


def lfu(node: Node) -> Rank:
    return (node.hits, node.used)


def slru(node: Node) -> Rank:
    """Two segments: what was never matched again is on probation and goes before what was. Protection ends when as much
    as the whole pool has been evicted since the last use, so what was hot once cannot fill the pool for good. Source:
    segmented LRU (Karedla et al., 1994), its bound in evicted tokens, which a heap can keep."""
    return (node.level + (node.hits > 0), node.used)


def fifo(node: Node) -> Rank:
    return (node.created,)


def priority(node: Node) -> Rank:
    """The highest priority of the requests that used it."""
    return (node.priority, node.used)


def cost(node: Node) -> Rank:
    """Time to compute a token again, times how often it was asked for, on top of the level at its last use. All tokens
    have the same size. Source: GreedyDual-Size-Frequency (Cherkasova, HP Labs HPL-98-69R1)."""
    return (node.level + (1 + node.hits) * (1 + node.start / _ATTENTION_SCALE), node.used)


POLICIES: dict[str, Policy] = {
    "lru": lru, "lfu": lfu, "slru": slru, "fifo": fifo, "priority": priority, "cost": cost,
}  # fmt: skip

_DEAD, _PLAIN, _WILL_RETURN = range(3)


def _retention(node: Node) -> int:
    """Hints of the streams come before any policy."""
    if node.returning:
        return _WILL_RETURN
    return _DEAD if node.is_dead else _PLAIN


class _Entry(NamedTuple):
    rank: Rank
    serial: int
    stamp: int
    node: Node


class EvictionHeap:
    def __init__(self, policy: str) -> None:
        self._policy = named("eviction policy", policy, POLICIES)
        self._entries: list[_Entry] = []
        self._stamp = 0
        # What nodes take over at each use, so that old fame fades: for `cost` the rank of the latest victim, for `slru`
        # what has been evicted so far, in pools.
        self.level = 0.0

    def offer(self, node: Node) -> None:
        """A leaf under no lock. One that still has an entry keeps it."""
        if node.stamp < 0:
            self._push(node)

    def demote(self, node: Node) -> None:
        """Its rank went down. Nothing to do unless it is queued."""
        if node.stamp >= 0:
            self._push(node)

    def pop(self) -> Node | None:
        """The next leaf to evict; None when nothing can be. A leaf that stays in the tree must be offered again."""
        while self._entries:
            rank, _, stamp, node = heapq.heappop(self._entries)
            if stamp != node.stamp:
                continue
            node.stamp = -1
            if node.parent is None or node.locks or not node.is_leaf:
                continue
            if self._rank(node) > rank:
                self._push(node)
                continue
            if rank[0] == _PLAIN and self._policy is cost:
                self.level = rank[1]
            return node
        return None

    def turn_over(self, share: float) -> None:
        """A share of the pool was evicted."""
        if self._policy is slru:
            self.level += share

    def __len__(self) -> int:
        return len(self._entries)

    def _rank(self, node: Node) -> Rank:
        return (_retention(node), *self._policy(node))

    def _push(self, node: Node) -> None:
        self._stamp += 1
        node.stamp = self._stamp
        heapq.heappush(self._entries, _Entry(self._rank(node), node.serial, self._stamp, node))
