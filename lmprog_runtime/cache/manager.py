"""Owns tree, slots and leases, and the one order in which memory changes hands:

    match -> lock -> reserve -> allocate -> forward -> publish (dedup, remap the row to the tree's slots) -> release

At every moment: free + evictable + protected + held by live rows == total, and each slot has one owner.
Knows nothing of requests or steps; the scheduler is its only caller, on one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.config import CacheConfig
from lmprog_runtime.cache.events import CacheEvent, Listener, piece_event
from lmprog_runtime.cache.eviction import EvictionHeap
from lmprog_runtime.cache.invariants import check
from lmprog_runtime.cache.lease import Lease, LeaseBook
from lmprog_runtime.cache.node import Namespace, Node, namespace_of, path, path_key
from lmprog_runtime.cache.radix_tree import Match, RadixTree
from lmprog_runtime.cache.report import Explanation, dump, explain, pretty
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.slots import SlotAllocator, Slots
from lmprog_runtime.cache.tiers import Loaded, Tiers


@dataclass(slots=True)
class CacheCounters:
    """In tokens, since the start."""

    queried: int = 0  # prompt tokens of first admissions
    hit: int = 0  # part of `queried` that was not computed
    evicted: int = 0
    deduplicated: int = 0  # computed twice and found in the tree when published


class CacheManager:
    def __init__(self, config: CacheConfig, on_event: Listener | None = None, tiers: Tiers | None = None) -> None:
        """`on_event` is called at once for every change and must not call back. `tiers` keep KV beyond the pool."""
        self.config = config
        self.tiers = tiers if config.enabled else None
        self._listeners: list[Listener] = [] if on_event is None else [on_event]  # costs nothing while nobody listens
        self.page_size = config.page_size
        self.num_slots = config.num_slots - config.num_slots % config.page_size
        self.counters = CacheCounters()
        self.slots = SlotAllocator(self.num_slots, debug_owners=config.debug_owners)
        self.evictor = EvictionHeap(config.policy)
        self.tree = RadixTree(config.page_size, self.evictor)
        self.leases = LeaseBook(self.tree, int(config.lease_share * self.num_slots))
        self.rows: dict[Row, None] = {}
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
        self, namespace: Namespace, match: Match | None, count: int, *, keep_free: int, hit: bool, priority: int = 0
    ) -> Row | None:
        """Lock a match and put `count` slots of its own behind it, if `keep_free` more can be had besides. None when
        there is no room; matches made before are void. `hit` counts for the eviction policy: once per request."""
        node = self.tree.root(namespace) if match is None else self.tree.take(match)
        self.tree.lock(node)
        if self.available < self._ceil(count) + keep_free:
            self.tree.unlock(node)
            return None
        self._reserve(self._ceil(count))
        self.tree.touch(node, priority, hit=hit)
        self._write_through(node)
        row = Row(node, self._path_slots(node), priority)
        self.rows[row] = None
        self._allocate(row, self._ceil(count))
        return row

    def load(self, row: Row, namespace: Namespace, key: bytes, limit: int) -> Loaded:
        """Fill a row that was just opened with what the tiers know of its next tokens before `limit`; publish that."""
        if self.tiers is None:
            return Loaded(0, 0)
        start = row.shared
        loaded = self.tiers.load(namespace, key, row.slots, start, limit)
        if sum(loaded):
            self.publish(row, key, start + sum(loaded))
            row.node.is_saved = True
        return loaded

    def prefetch(self, namespace: Namespace, key: bytes) -> None:
        """A request with this prompt waits: bring what the file tier has of it closer."""
        if self.tiers is not None:
            match = self.match(namespace, key, keys.count(key))
            self.tiers.prefetch(namespace, key, 0 if match is None else match.length)

    def grow(self, row: Row, count: int, spare: int = 0) -> bool:
        """`count` more slots, and up to `spare` on top of them if they can be had, so that a growing row gets runs and
        not single slots. Evicts if need be. False: no room."""
        count = self._ceil(count)
        wanted = min(count + self._ceil(spare), self.tree.floor(self.available))
        if wanted < count:
            return False
        self._reserve(wanted)
        self._allocate(row, wanted)
        return True

    def shrink(self, row: Row, length: int) -> None:
        """Give back the slots behind the first `length`, but none of the tree's."""
        length = max(self._ceil(length), row.shared)
        if length < row.allocated:
            self._free(row, row.shrink(length))

    def _reserve(self, count: int) -> None:
        if count > self.slots.free_count:
            self.evict(count - self.slots.free_count)

    def _allocate(self, row: Row, count: int) -> None:
        if count:
            last = int(row.slots[-1]) if row.allocated else -2
            row.extend(self.slots.allocate(count, row, after=last))
            self.held += count

    def evict(self, count: int) -> int:
        """Free at least `count` slots if so many are evictable, less than a page more. Returns how many were freed."""
        freed = 0
        while freed < count and (node := self.evictor.pop()) is not None:
            freed += self._evict(node, max(0, node.length - self._ceil(count - freed)))
        self.counters.evicted += freed
        self.evictor.turn_over(freed / self.num_slots)
        return freed

    def _evict(self, node: Node, keep: int) -> int:
        self._report("removed", node, keep, node.length)
        self._save(node, is_leaving=True)
        self.tree.remember_evicted(node, keep)
        gone = self.tree.cut(node, keep)
        if keep:
            self.evictor.offer(node)
        self.slots.free(gone, self.tree)
        return len(gone)

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
        if self._listeners:
            for node in self.tree.in_flight:
                self._report("stored", node, self.tree.floor(node.settled), self.tree.floor(node.ready))
        computed = self.tree.in_flight if self.tiers is not None else []
        self.tree.settle()
        for node in computed:
            self._write_through(node)

    def relies_on_flight(self, row: Row) -> bool:
        """Whether the row's prefix has tokens that the step in flight computes."""
        return any(node.settled < node.ready for node in path(row.node))

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
        if node.end < computed and self.tree.child(node, key, node.end) is None:
            node = self._hand_over(row, node, key, computed)
        self._move_lock(row, node)
        self.tree.touch(node, row.priority, hit=False)
        self._write_through(node)

    def _descend(self, row: Row, key: bytes, computed: int) -> Node:
        """Follow what the tree knows of [shared, computed), taking its slots in place of the row's own. Stops at the
        work of the step in flight, which may fail: what the row has beyond stays the row's."""
        node = row.node
        while node.end < computed and (child := self.tree.child(node, key, node.end)) is not None:
            if child.writer is not None and self.tree.floor(child.ready) == 0:
                self._break_promise(child.writer)  # what is computed beats what is promised
                continue
            same = min(keys.common_tokens(key, node.end, child.key), computed - node.end, child.settled)
            if self.tree.floor(same) == 0:
                break
            node = self.tree.split(child, self.tree.floor(same)) if same < child.length else child
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
        if writer is None:
            self._report("stored", node, 0, node.length)
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

    def release(
        self, row: Row, key: bytes, computed: int, lease: Lease | None = None, dead_from: int | None = None
    ) -> None:
        """The only end of a row: un-publish what it only promised, publish its first `computed` tokens, free the rest.
        Its lock moves to the lease, if one is given; else it is dropped and tokens from `dead_from` go first."""
        if row.node.writer is row:
            self._break_promise(row)
        self.publish(row, key, computed)
        self._free(row, row.shrink(row.shared))
        del self.rows[row]
        if lease is not None:
            self.leases.hold(lease, row.node)
            return
        self.tree.unlock(row.node)
        if dead_from is not None and self.tree.is_attached(row.node):
            self.tree.bury(row.node, dead_from)

    def _free(self, row: Row, slots: Slots) -> None:
        self.held -= len(slots)
        self.slots.free(slots, row)

    # -- leases

    def open_lease(self) -> Lease:
        """Holds nothing yet. The one call that any thread may make."""
        return Lease()

    def fork_lease(self, parent: Lease) -> Lease:
        """A lease on what the parent holds, for a stream that starts as its parent's."""
        child = Lease()
        self.share_lease(parent, child)
        return child

    def share_lease(self, parent: Lease, child: Lease) -> None:
        """Let a lease that holds nothing yet hold what the parent holds."""
        node = parent.node
        if node is not None and self.tree.is_attached(node):
            self.tree.lock(node)
            self.leases.hold(child, node)

    def will_return(self, lease: Lease) -> None:
        """The stream waits for others (a join) and comes back later: unlocked, but evicted after everything else."""
        self.leases.soften(lease)

    def close_lease(self, lease: Lease, dead_from: int | None = None) -> None:
        """The stream has ended. Its tokens from position `dead_from` on, if given, are of no use to anybody else: they
        are evicted first. Idempotent."""
        node = self.leases.close(lease)
        if node is not None and dead_from is not None and self.tree.is_attached(node):
            self.tree.bury(node, dead_from)

    def revoke_lease(self) -> bool:
        """Take the lock of the least recently used lease; its stream will have to match again. False: there is none."""
        return self.leases.revoke()

    # -- tiers

    def _write_through(self, node: Node) -> None:
        """Copy down what was asked for often enough, along the path of `node`."""
        if self.tiers is None or self.tiers.config.write_on_hit is None:
            return
        for part in path(node):
            if part.hits >= self.tiers.config.write_on_hit:
                self._save(part)

    def _save(self, node: Node, *, is_leaving: bool = False) -> None:
        if self.tiers is None or node.settled < node.length:
            return
        if not node.is_saved or (is_leaving and self.tiers.files is None):  # memory alone may have dropped it since
            self.tiers.save(namespace_of(node), path_key(node), self._path_slots(node), node.start)
            node.is_saved = True

    def close(self) -> None:
        """Copy everything down and end the tiers' thread; for the end, when no sequence is live. Idempotent."""
        if self.tiers is not None:
            for node in self.tree.nodes():
                self._save(node)
            self.tiers.close()
            self.tiers = None

    # -- whole cache

    def flush(self) -> int:
        """Drop all that no live row and no lease holds, in every tier. Returns the tokens dropped from the pool."""
        if self.tiers is not None:
            self.tiers.clear()
            for node in self.tree.nodes():
                node.is_saved = False
        tiers, self.tiers = self.tiers, None  # what is dropped now is not to be saved
        dropped = self._drop_evictable()
        self.tiers = tiers
        return dropped

    def _drop_evictable(self) -> int:
        if self.tree.protected:
            return self.evict(self.tree.evictable)
        listeners, self._listeners = self._listeners, []  # told once, not for each node
        dropped = self.evict(self.tree.evictable)
        self._listeners = listeners
        self._tell(CacheEvent("cleared", (), 0, (), "", ""))
        return dropped

    def check(self) -> None:
        """Recompute the accounting; `CacheCorrupt` with all violations and the tree when it does not add up."""
        check(self)

    def adds_up(self) -> bool:
        """The sum of `check`, from the numbers that are kept: cheap enough for every step."""
        parts = (self.slots.free_count, self.tree.evictable, self.tree.protected, self.held)
        return min(parts) >= 0 and sum(parts) == self.num_slots

    def pretty(self) -> str:
        """The tree for people, one line per node."""
        return pretty(self)

    def dump(self) -> dict[str, Any]:
        """The tree for programs: plain JSON types."""
        return dump(self)

    def explain(self, namespace: Namespace, token_ids: Sequence[int]) -> Explanation:
        """How much of a prompt is cached, along which nodes, and why not more."""
        return explain(self, namespace, token_ids)

    def subscribe(self, listener: Listener) -> None:
        """Call it at once for every change from now on; it must not call back."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Idempotent."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _tell(self, event: CacheEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def _report(self, kind: Literal["stored", "removed"], node: Node, low: int, high: int) -> None:
        if self._listeners and low < high:
            self._tell(piece_event(kind, node, low, high))

    def _ceil(self, count: int) -> int:
        return -(-count // self.page_size) * self.page_size

    def _path_slots(self, node: Node) -> Slots:
        parts = [part.slots for part in path(node)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)
