"""The radix tree: token ids to slots, shared by all sequences of a namespace.

Owns structure, locks and the sizes of what can and cannot be evicted. Knows nothing of rows' own slots or of the
allocator: whatever leaves the tree is returned to the caller, who frees it. All walks are loops: depth is unbounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.eviction import EvictionHeap
from lmprog_runtime.cache.node import Namespace, Node, Root
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.slots import Slots

_MOST_GHOSTS = 1024
_MOST_LOST_NAMESPACES = 64


class Match(NamedTuple):
    """How far a key is known. Nothing is locked or split yet."""

    node: Node  # last node of which a part matches
    offset: int  # tokens of that node that match and may be read
    length: int  # tokens from the root: the usable prefix
    promised: int  # further tokens of the key that another sequence is about to compute


class RadixTree:
    def __init__(self, page_size: int, evictor: EvictionHeap) -> None:
        self.page_size = page_size
        self.roots: dict[Namespace, Root] = {}
        self.evictable = 0  # tokens under no lock
        self.protected = 0  # tokens on a locked path
        self.leased = 0  # part of `protected` that leases lock, whoever else does
        self.clock = 0
        self._in_flight: list[Node] = []
        self._lost_namespaces: dict[Namespace, set[bytes]] = {}  # ghosts of roots that are gone
        self._evictor = evictor
        self._page_bytes = page_size * keys.TOKEN_BYTES

    def __repr__(self) -> str:
        return "the radix tree"

    # -- reading

    def root(self, namespace: Namespace) -> Root:
        if (root := self.roots.get(namespace)) is None:
            root = self.roots[namespace] = Root(namespace)
            root.ghosts = self._lost_namespaces.pop(namespace, None)
        return root

    def match(self, namespace: Namespace, key: bytes) -> Match | None:
        """Longest prefix of `key` in whole pages. O(bytes compared); None for an unknown namespace."""
        root = self.roots.get(namespace)
        return None if root is None else self.match_below(root, key)

    def match_below(self, node: Node, key: bytes) -> Match:
        """As `match`, from the end of a node whose whole path is known to match."""
        offset, position = node.length, node.end
        while (child := self.child(node, key, position)) is not None:
            same = self.floor(keys.common_tokens(key, position, child.key))
            usable = min(same, self.floor(child.ready))
            if usable:
                node, offset, position = child, usable, position + usable
            if usable < child.length:
                return Match(node, offset, position, same - usable)
        return Match(node, offset, position, 0)

    def child(self, node: Node, key: bytes, position: int) -> Node | None:
        start = position * keys.TOKEN_BYTES
        return node.children.get(key[start : start + self._page_bytes])

    def floor(self, tokens: int) -> int:
        return tokens - tokens % self.page_size

    def nodes(self) -> Iterator[Node]:
        """All nodes but roots, parents first, children in order of insertion."""
        stack = [child for root in self.roots.values() for child in root.children.values()][::-1]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    # -- locks

    def lock(self, node: Node, below: Node | None = None) -> None:
        """Keep the path from below `below` (the root and all, when None) down to `node`."""
        walker: Node | None = node
        while walker is not None and walker is not below:
            if walker.locks == 0:
                self.evictable -= walker.length
                self.protected += walker.length
            walker.locks += 1
            walker = walker.parent

    def unlock(self, node: Node, below: Node | None = None) -> None:
        walker: Node | None = node
        top = node
        while walker is not None and walker is not below:
            assert walker.locks > 0, f"{walker} is unlocked more often than locked"
            walker.locks -= 1
            if walker.locks == 0:
                self.evictable += walker.length
                self.protected -= walker.length
                self._offer(walker)
            top, walker = walker, walker.parent
        self._drop_if_empty(top)

    def touch(self, node: Node, priority: int, *, hit: bool) -> None:
        """Mark a path as just used; `hit` counts a request that matched it, once per request."""
        self.clock += 1
        clock, level = self.clock, self._evictor.level
        walker: Node | None = node
        while walker is not None:
            walker.used, walker.level, walker.is_dead = clock, level, False
            walker.hits += hit
            if walker.priority < priority:
                walker.priority = priority
            walker = walker.parent

    # -- hints

    def count_lease(self, node: Node, change: int) -> None:
        """A lease takes over or gives back a lock on the path of `node`."""
        walker: Node | None = node
        while walker is not None:
            before = walker.leases > 0
            walker.leases += change
            self.leased += walker.length * ((walker.leases > 0) - before)
            walker = walker.parent

    def count_return(self, node: Node, change: int) -> None:
        """A stream that ends at `node` will return, or has."""
        node.returning += change
        self._evictor.demote(node)

    def bury(self, node: Node, start: int) -> None:
        """The only stream through the tokens from `start` to the end of `node` has ended: evict them first. Stops where
        somebody else holds or continues the path."""
        start = -(-start // self.page_size) * self.page_size
        walker, below = node, None
        while walker.parent is not None and not walker.locks and walker.end > start:
            if any(child is not below for child in walker.children.values()):
                return
            if walker.start < start:
                self.split(walker, start - walker.start)
            walker.is_dead = True
            self._evictor.demote(walker)
            walker, below = walker.parent, walker

    def is_attached(self, node: Node) -> bool:
        """Whether a node seen earlier is still part of the tree."""
        return node.parent is not None or (isinstance(node, Root) and self.roots.get(node.namespace) is node)

    # -- changing structure

    def take(self, match: Match) -> Node:
        """The node that ends exactly where the match does; splits one when the match ends inside."""
        return self.split(match.node, match.offset) if match.offset < match.node.length else match.node

    def split(self, node: Node, at: int) -> Node:
        """Cut off the first `at` tokens as a new parent, which is returned. The node itself keeps the tail, so rows
        that point at it still point at the end of their path."""
        assert node.parent is not None
        upper = Node(node.parent, node.start, keys.piece(node.key, 0, at), node.slots[:at])
        upper.ready, upper.settled = min(node.ready, at), min(node.settled, at)
        upper.serial, node.serial = node.serial, upper.serial  # older work stays first in the order of serials
        upper.locks, upper.leases, upper.hits = node.locks, node.leases, node.hits
        upper.used, upper.created, upper.level = node.used, node.created, node.level
        upper.priority, upper.is_dead, upper.is_saved = node.priority, node.is_dead, node.is_saved
        node.parent.children[upper.key[: self._page_bytes]] = upper
        node.ready, node.settled = node.ready - upper.ready, node.settled - upper.settled
        node.parent, node.start = upper, node.start + at
        node.key, node.slots = node.key[at * keys.TOKEN_BYTES :], node.slots[at:]
        upper.children[node.key[: self._page_bytes]] = node
        if upper.settled < upper.ready:
            self._in_flight.append(upper)
        return upper

    def add(self, parent: Node, key: bytes, slots: Slots, writer: Row | None = None) -> Node:
        """A new leaf under `parent`. With a writer it is only promised: nobody may read it before `advance`."""
        node = Node(parent, parent.end, key, slots)
        if writer is not None:
            node.writer, node.ready, node.settled = writer, 0, 0
        node.used = node.created = self.clock
        node.level = self._evictor.level
        parent.children[key[: self._page_bytes]] = node
        if parent.ghosts is not None:
            parent.ghosts.discard(key[: self._page_bytes])
        self.evictable += node.length
        if writer is None:
            self._offer(node)
        return node

    def remember_evicted(self, node: Node, keep: int) -> None:
        """So that a later miss can be told from tokens never seen. Bounded per node, gone with it."""
        assert node.parent is not None
        holder = node if keep else node.parent
        start = keep * keys.TOKEN_BYTES
        if keep or holder.ghosts is None:
            holder.ghosts = set()
        if len(holder.ghosts) < _MOST_GHOSTS:
            holder.ghosts.add(node.key[start : start + self._page_bytes])

    def ghosts(self, namespace: Namespace) -> set[bytes] | None:
        """First pages of what was evicted right behind the root."""
        root = self.roots.get(namespace)
        return self._lost_namespaces.get(namespace) if root is None else root.ghosts

    def cut(self, node: Node, length: int) -> Slots:
        """Keep the first `length` tokens of a leaf; 0 removes it. Returns the slots that left the tree."""
        assert node.is_leaf
        assert node.parent is not None
        gone = node.slots[length:]
        if node.locks:
            self.protected -= len(gone)
        else:
            self.evictable -= len(gone)
        if length == 0:
            self._remove(node)
        else:
            node.key, node.slots, node.end = keys.piece(node.key, 0, length), node.slots[:length], node.start + length
            node.ready, node.settled = min(node.ready, length), min(node.settled, length)
        return gone

    def _remove(self, node: Node) -> None:
        assert node.parent is not None
        parent = node.parent
        del parent.children[node.key[: self._page_bytes]]
        node.parent = None
        self._offer(parent)
        self._drop_if_empty(parent)

    def _offer(self, node: Node) -> None:
        if node.locks == 0 and node.is_leaf and node.parent is not None:
            self._evictor.offer(node)

    def _drop_if_empty(self, node: Node) -> None:
        """Salts come and go: a root that holds nothing must not stay."""
        if isinstance(node, Root) and node.is_leaf and node.locks == 0:
            self.roots.pop(node.namespace, None)
            if node.ghosts:
                self._lost_namespaces[node.namespace] = node.ghosts
            if len(self._lost_namespaces) > _MOST_LOST_NAMESPACES:
                del self._lost_namespaces[next(iter(self._lost_namespaces))]

    # -- the step in flight

    def advance(self, node: Node, ready: int) -> None:
        """The step being built computes the first `ready` tokens of a promised node."""
        node.ready = ready
        self._in_flight.append(node)
        if ready == node.length:
            node.writer = None

    @property
    def in_flight(self) -> list[Node]:
        """Nodes of which the step in flight computes a part, [settled, ready)."""
        return [node for node in self._in_flight if node.parent is not None]

    def settle(self) -> None:
        """The step in flight has ended well."""
        for node in self._in_flight:
            node.settled = node.ready
        self._in_flight.clear()

    def discard_in_flight(self) -> list[Slots]:
        """The step in flight has failed: take out all that it was to compute, and whatever stands below."""
        gone: list[Slots] = []
        for node in sorted(self._in_flight, key=lambda node: node.start):
            if node.parent is not None:  # else it went with a node above
                gone.extend(self._cut_subtree(node, self.floor(node.settled)))
        self._in_flight.clear()
        return gone

    def _cut_subtree(self, node: Node, length: int) -> list[Slots]:
        below, stack = [], list(node.children.values())
        while stack:
            below.append(stack.pop())
            stack.extend(below[-1].children.values())
        gone = [self.cut(child, 0) for child in reversed(below)]
        gone.append(self.cut(node, length))
        return gone
