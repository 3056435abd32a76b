"""Owns tree, slots and leases, and the one order in which memory changes hands:

    match -> lock -> reserve -> allocate -> forward -> publish (dedup, remap the row to the tree's slots) -> release

At every moment: free + evictable + protected + held by live rows == total, and each slot has one owner.
Knows nothing of requests or steps; the scheduler is its only caller, on one thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.config import CacheConfig
from lmprog_runtime.cache.eviction import EvictionHeap, lru
from lmprog_runtime.cache.invariants import check
from lmprog_runtime.cache.lease import Lease
from lmprog_runtime.cache.node import Namespace, Node, path
from lmprog_runtime.cache.radix_tree import Match, RadixTree
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.slots import SlotAllocator, Slots


@dataclass(slots=True)
class CacheCounters:
    """In tokens, since the start."""

    queried: int = 0  # prompt tokens of first admissions
    hit: int = 0  # part of `queried` that was not computed
    evicted: int = 0
    deduplicated: int = 0  # computed twice and found in the tree when published
    revoked_leases: int = 0  # leases, not tokens


class CacheManager:
    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.page_size = config.page_size
        self.num_slots = config.num_slots - config.num_slots % config.page_size
        self.counters = CacheCounters()
        self.slots = SlotAllocator(self.num_slots, debug_owners=config.debug_owners)
        self.evictor = EvictionHeap(lru)
        self.tree = RadixTree(config.page_size, self.evictor.offer)
        self.rows: dict[Row, None] = {}
        self.leases: dict[Lease, None] = {}  # those that lock something, least recently used first
        self.held = 0  # slots that only live rows have

    # -- match, lock, reserve, allocate

    @property
    def available(self) -> int:
        """Slots that can be had without taking anything from a live row or lease."""
        return self.slots.free_count + self.tree.evictable

    def match(self, namespace: Namespace, key: bytes, limit: int) -> Match | None:
        """Longest usable prefix of the first `limit` tokens. Changes nothing. None: unknown, or the cache is off."""
        if not self.config.enabled:
            return None
        return self.tree.match(namespace, keys.piece(key, 0, limit))

    def open_row(
        self, namespace: Namespace, match: Match | None, count: int, *, keep_free: int, hit: bool
    ) -> Row | None:
        """Lock a match and put `count` slots of its own behind it, if `keep_free` more can be had besides. None when
        there is no room; matches made before are void. `hit` counts for the eviction policy: once per request."""
        node = self.tree.root(namespace) if match is None else self.tree.take(match)
        self.tree.lock(node)
        if self.available < self._ceil(count) + keep_free:
            self.tree.unlock(node)
            return None
        self._reserve(self._ceil(count))
        self.tree.touch(node, hit=hit)
        row = Row(node, self._path_slots(node))
        self.rows[row] = None
        self._allocate(row, self._ceil(count))
        return row

    def grow(self, row: Row, count: int, spare: int = 0) -> bool:
        """`count` more slots, evicting if need be, and up to `spare` on top of them from free ones. False: no room."""
        count = self._ceil(count)
        if not self._reserve(count):
            return False
        spare = min(self._ceil(spare), self.tree.floor(self.slots.free_count - count))
        self._allocate(row, count + spare)
        return True

    def shrink(self, row: Row, length: int) -> None:
        """Give back the slots behind the first `length`, but none of the tree's."""
        length = max(self._ceil(length), row.shared)
        if length < row.allocated:
            self._free(row, row.shrink(length))

    def _reserve(self, count: int) -> bool:
        shortage = count - self.slots.free_count
        if shortage > self.tree.evictable:
            return False
        if shortage > 0:
            self.evict(shortage)
        return True

    def _allocate(self, row: Row, count: int) -> None:
        if count:
            last = int(row.slots[-1]) if row.allocated else -2
            row.extend(self.slots.allocate(count, row, after=last))
            self.held += count

    def evict(self, count: int) -> int:
        """Free at least `count` slots if so many are evictable, less than a page more. Returns how many were freed."""
        freed = 0
        while freed < count and (node := self.evictor.pop()) is not None:
            keep = max(0, node.length - self._ceil(count - freed))
            gone = self.tree.cut(node, keep)
            if keep:
                self.evictor.offer(node)
            self.slots.free(gone, self.tree)
            freed += len(gone)
        self.counters.evicted += freed
        return freed

    # -- publish

    def promise(self, row: Row, key: bytes, length: int) -> None:
        """Publish at schedule: put the first `length` tokens into the tree before they are computed, so that others can
        wait for them instead of computing them too. Does nothing where the tree knows the next page already."""
        length = self.tree.floor(length)
        if not self.config.enabled or length <= row.shared or self.tree.child(row.node, key, row.shared) is not None:
            return
        self._move_lock(row, self._hand_over(row, row.node, key, length, writer=row))

    def advance(self, row: Row, computed: int) -> None:
        """The step being built computes the row up to position `computed`: readable for rows of the same step."""
        node = row.node
        if node.writer is row:
            self.tree.advance(node, min(computed, node.end) - node.start)

    def settle(self) -> None:
        """The step in flight ended well."""
        self.tree.settle()

    def discard_in_flight(self) -> None:
        """The step in flight failed and its rows are released: take what it would have computed out of the tree."""
        for gone in self.tree.discard_in_flight():
            self.slots.free(gone, self.tree)

    def publish(self, row: Row, key: bytes, computed: int) -> None:
        """Give the first `computed` tokens to the tree, in whole pages.

        # [0, shared)           the tree's already
        # [shared, known)       ours, but the tree has the same tokens: free ours, remap the row to the tree's
        # [known, computed)     ours: given to the tree now
        # [computed, allocated) ours until the next publish
        """
        computed = self.tree.floor(computed)
        if not self.config.enabled or computed <= row.shared:
            return
        node = self._descend(row, key, computed)
        if node.end < computed:
            node = self._hand_over(row, node, key, computed)
        self._move_lock(row, node)
        self.tree.touch(node, hit=False)

    def _descend(self, row: Row, key: bytes, computed: int) -> Node:
        """Follow what the tree knows of [shared, computed), taking its slots in place of the row's own."""
        node = row.node
        while node.end < computed and (child := self.tree.child(node, key, node.end)) is not None:
            if child.writer is not None:
                self._break_promise(child.writer)  # what is computed beats what is promised
                continue
            same = min(self.tree.floor(keys.common_tokens(key, node.end, child.key)), computed - node.end)
            node = self.tree.split(child, same) if same < child.length else child
            self._adopt(row, node)
        return node

    def _adopt(self, row: Row, node: Node) -> None:
        own = row.slots[node.start : node.end].copy()
        row.slots[node.start : node.end] = node.slots
        self.counters.deduplicated += len(own)
        self._free(row, own)

    def _hand_over(self, row: Row, parent: Node, key: bytes, end: int, writer: Row | None = None) -> Node:
        slots = row.slots[parent.end : end].copy()
        node = self.tree.add(parent, keys.piece(key, parent.end, end), slots, writer)
        self.held -= len(slots)
        self.slots.transfer(slots, self.tree)
        return node

    def _move_lock(self, row: Row, node: Node) -> None:
        self.tree.lock(node, below=row.node)
        row.node, row.shared = node, node.end

    def _break_promise(self, row: Row) -> None:
        """Un-publish what the row was going to compute and has not; the slots are the row's own again."""
        node, parent = row.node, row.node.parent
        assert node.writer is row
        assert parent is not None
        node.writer = None
        keep = self.tree.floor(node.ready)
        gone = self.tree.cut(node, keep)
        self.held += len(gone)
        self.slots.transfer(gone, row)
        row.node = node if keep else parent
        row.shared = row.node.end

    # -- release

    def release(self, row: Row, key: bytes, computed: int, lease: Lease | None = None) -> None:
        """The only end of a row: un-publish what it only promised, publish its first `computed` tokens, free the rest.
        Its lock moves to the lease if one is given and open, else it is dropped."""
        if row.node.writer is row:
            self._break_promise(row)
        self.publish(row, key, computed)
        self._free(row, row.shrink(row.shared))
        del self.rows[row]
        if lease is None or lease.closed:
            self.tree.unlock(row.node)
        else:
            self._move_lease(lease, row.node)

    def _free(self, row: Row, slots: Slots) -> None:
        self.held -= len(slots)
        self.slots.free(slots, row)

    # -- leases

    def open_lease(self) -> Lease:
        return Lease()

    def close_lease(self, lease: Lease) -> None:
        """The stream has ended. Idempotent."""
        lease.closed = True
        self._move_lease(lease, None)

    def revoke_lease(self) -> bool:
        """Take the lock of the least recently used lease; its stream will have to match again. False: there is none."""
        for lease in self.leases:
            self._move_lease(lease, None)
            self.counters.revoked_leases += 1
            return True
        return False

    def _move_lease(self, lease: Lease, node: Node | None) -> None:
        """`node` comes with a lock of its own, which the lease takes over."""
        before, lease.node = lease.node, node
        self.leases.pop(lease, None)
        if node is not None:
            self.leases[lease] = None
        if before is not None:
            self.tree.unlock(before)

    # -- whole cache

    def flush(self) -> int:
        """Drop all that no live row and no lease holds. Returns the number of tokens dropped."""
        return self.evict(self.tree.evictable)

    def check(self) -> None:
        """Recompute the accounting; `CacheCorrupt` with all violations and the tree when it does not add up."""
        check(self)

    def _ceil(self, count: int) -> int:
        return -(-count // self.page_size) * self.page_size

    def _path_slots(self, node: Node) -> Slots:
        parts = [part.slots for part in path(node)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
