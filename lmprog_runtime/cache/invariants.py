"""The accounting of the cache, recomputed from nothing and compared with what is kept up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from lmprog_runtime.cache.node import Node, Root, path
from lmprog_runtime.cache.report import pretty
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.slots import Slots

if TYPE_CHECKING:
    from lmprog_runtime.cache.manager import CacheManager


class CacheCorrupt(AssertionError):
    """The cache's books do not balance: a bug in lmprog. Has every violation, and the tree."""


def check(cache: CacheManager) -> None:
    nodes = list(cache.tree.nodes())
    violations = [*_sizes(cache, nodes), *_owners(cache, nodes), *_locks(cache, nodes), *_rows(cache)]
    for node in nodes:
        violations += _node(cache, node)
    if violations:
        raise CacheCorrupt("\n".join([f"{len(violations)} violations:", *violations, pretty(cache)]))


def _sizes(cache: CacheManager, nodes: list[Node]) -> Iterator[str]:
    tree = cache.tree
    found = {
        "free": (cache.slots.free_count, len(cache.slots.free_slots())),
        "evictable": (tree.evictable, sum(node.length for node in nodes if not node.locks)),
        "protected": (tree.protected, sum(node.length for node in nodes if node.locks)),
        "held": (cache.held, sum(row.held for row in cache.rows)),
    }
    for name, (kept, counted) in found.items():
        if kept != counted:
            yield f"{name} is kept as {kept} and counted as {counted}"
    if (total := sum(counted for _, counted in found.values())) != cache.num_slots:
        yield f"free + evictable + protected + held is {total} of {cache.num_slots} slots"
    if sum(cache.slots.extents().values()) != cache.slots.free_count:
        yield "the free extents do not add up to the free slots"


def _owners(cache: CacheManager, nodes: list[Node]) -> Iterator[str]:
    held: list[tuple[object, Slots]] = [(node, node.slots) for node in nodes]
    held += [(row, row.slots[row.shared :]) for row in cache.rows]
    free = cache.slots.free_slots()
    times = np.bincount(np.concatenate([free, *(slots for _, slots in held)]), minlength=cache.num_slots)
    for slot in np.flatnonzero(times != 1).tolist():
        owners = [owner for owner, slots in [("the free list", free), *held] if slot in slots]
        yield f"slot {slot} has {len(owners)} owners: {owners}"
    if cache.config.debug_owners:
        yield from _noted_owners(cache, held)


def _noted_owners(cache: CacheManager, held: list[tuple[object, Slots]]) -> Iterator[str]:
    for owner, slots in held:
        expected = cache.tree if isinstance(owner, Node) else owner
        for slot in slots.tolist():
            if cache.slots.owner(slot) is not expected:
                yield f"slot {slot} is noted as owned by {cache.slots.owner(slot)} and belongs to {owner}"


def _locks(cache: CacheManager, nodes: list[Node]) -> Iterator[str]:
    expected: Counter[Node] = Counter()
    leases: Counter[Node] = Counter()
    leased = [lease.node for lease in cache.leases.locking if lease.node is not None]
    for index, end in enumerate(leased + [row.node for row in cache.rows]):
        walker: Node | None = end
        while walker is not None:
            expected[walker] += 1
            leases[walker] += index < len(leased)
            top, walker = walker, walker.parent
        if not isinstance(top, Root) or cache.tree.roots.get(top.namespace) is not top:
            yield f"{end} is locked but not part of the tree"
    for node in [*nodes, *cache.tree.roots.values()]:
        if (node.locks, node.leases) != (expected[node], leases[node]):
            yield (
                f"{node} has {node.locks} locks, {node.leases} of leases; "
                f"{expected[node]} rows and leases run through it, {leases[node]} of them leases"
            )
    if (leased_tokens := sum(node.length for node in leases if leases[node])) != cache.tree.leased:
        yield f"leased is kept as {cache.tree.leased} and counted as {leased_tokens}"
    if cache.tree.leased > cache.leases.limit:
        yield f"leases lock {cache.tree.leased} tokens, more than the limit of {cache.leases.limit}"
    for root in cache.tree.roots.values():
        if root.is_leaf and not root.locks:
            yield f"the empty namespace {root.namespace} was kept"


def _rows(cache: CacheManager) -> Iterator[str]:
    for row in cache.rows:
        if row.node.end != row.shared:
            yield f"{row} shares {row.shared} slots, and its {row.node} ends elsewhere"
        shared = [slot for node in path(row.node) for slot in node.slots.tolist()]
        if row.slots[: row.shared].tolist() != shared:
            yield f"{row} has other slots than the path to its {row.node}"


def _node(cache: CacheManager, node: Node) -> Iterator[str]:
    page = cache.page_size
    assert node.parent is not None
    if node.start != node.parent.end or node.length != len(node.slots) or 4 * node.length != len(node.key):
        yield f"{node} has {len(node.key) // 4} tokens and {len(node.slots)} slots under {node.parent}"
    if node.length == 0 or node.length % page:
        yield f"{node} is not in whole pages of {page}"
    if node.parent.children.get(node.key[: 4 * page]) is not node:
        yield f"{node} is not found by its first page"
    if not 0 <= node.settled <= node.ready <= node.length:
        yield f"{node} has settled {node.settled}, ready {node.ready}, length {node.length}"
    if (node.writer is None) != (node.ready == node.length):
        yield f"{node} has ready {node.ready} of {node.length} and writer {node.writer}"
    if isinstance(node.writer, Row) and (node.writer.node is not node or not node.is_leaf):
        yield f"{node} is promised by {node.writer}, which does not end there"
    if node.locks > node.parent.locks:
        yield f"{node} has more locks than its parent"
    if node.is_leaf and not node.locks and node.stamp < 0:
        yield f"{node} can be evicted and is not queued for it"
