"""The radix tree: token ids to slots, shared by all sequences of a namespace.

Owns structure, locks and the sizes of what can and cannot be evicted. Knows nothing of rows' own slots or of the
allocator: whatever leaves the tree is returned to the caller, who frees it. All walks are loops: depth is unbounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.node import Namespace, Node, Root
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.slots import Slots


class Match(NamedTuple):
    """How far a key is known. Nothing is locked or split yet."""

    node: Node  # last node of which a part matches
    offset: int  # tokens of that node that match and may be read
    length: int  # tokens from the root: the usable prefix
    promised: int  # further tokens of the key that another sequence is about to compute


class RadixTree:
    def __init__(self, page_size: int, on_evictable_leaf: Callable[[Node], None]) -> None:
        self.page_size = page_size
        self.roots: dict[Namespace, Root] = {}
        self.evictable = 0  # tokens under no lock
        self.protected = 0  # tokens on a locked path
        self.clock = 0
        self._in_flight: list[Node] = []
        self._on_evictable_leaf = on_evictable_leaf
        self._page_bytes = page_size * keys.TOKEN_BYTES

    def __repr__(self) -> str:
        return "the radix tree"

    # -- reading

    def root(self, namespace: Namespace) -> Root:
        if (root := self.roots.get(namespace)) is None:
            root = self.roots[namespace] = Root(namespace)
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

    def touch(self, node: Node, *, hit: bool) -> None:
        """Mark a path as just used; `hit` counts a request that matched it, once per request."""
        self.clock += 1
        walker: Node | None = node
        while walker is not None:
            walker.used = self.clock
            walker.hits += hit
            walker = walker.parent

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
        upper.locks, upper.hits, upper.used, upper.created = node.locks, node.hits, node.used, node.created
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
        parent.children[key[: self._page_bytes]] = node
        self.evictable += node.length
        if writer is None:
            self._offer(node)
        return node

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
            self._on_evictable_leaf(node)

    def _drop_if_empty(self, node: Node) -> None:
        """Salts come and go: a root that holds nothing must not stay."""
        if isinstance(node, Root) and node.is_leaf and node.locks == 0:
            self.roots.pop(node.namespace, None)

    # -- the step in flight

    def advance(self, node: Node, ready: int) -> None:
        """The step being built computes the first `ready` tokens of a promised node."""
        node.ready = ready
        self._in_flight.append(node)
        if ready == node.length:
            node.writer = None

    def settle(self) -> None:
        """The step in flight has ended well."""
        for node in self._in_flight:
            node.settled = node.ready
        self._in_flight.clear()

    def discard_in_flight(self) -> list[Slots]:
        """The step in flight has failed: take out all that it was to compute, and whatever stands below."""
        gone: list[Slots] = []
        for node in sorted(self._in_flight, key=lambda node: node.start):
            if node.parent is not None:
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
        self._offer(node)
        return gone
