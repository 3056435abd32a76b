"""A node of the radix tree: one edge of tokens, and the slots that hold their KV."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from lmprog_runtime.cache.slots import Slots

if TYPE_CHECKING:
    from lmprog_runtime.cache.row import Row

Namespace = tuple[object, ...]  # model revision, adapter, salt: compared as a tuple, never joined to a string
_NO_SLOTS = np.empty(0, dtype=np.int32)
_serials = count()


class Node:
    """Tokens [start, end) of every sequence that runs through it.

    # [0, settled)        computed by a step that has ended
    # [settled, ready)    computed by the step in flight: a row of the same step may read it
    # [ready, end-start)  promised by `writer`, nobody may read it
    """

    __slots__ = (
        "children",
        "created",
        "end",
        "ghosts",
        "hits",
        "is_dead",
        "is_saved",
        "key",
        "leases",
        "level",
        "locks",
        "parent",
        "priority",
        "ready",
        "returning",
        "serial",
        "settled",
        "slots",
        "stamp",
        "start",
        "used",
        "writer",
    )

    def __init__(self, parent: Node | None, start: int, key: bytes, slots: Slots) -> None:
        self.parent = parent
        self.start = start
        self.end = start + len(slots)
        self.key = key
        self.slots = slots
        self.children: dict[bytes, Node] = {}  # by first page
        self.ready = self.settled = len(slots)
        self.writer: Row | None = None
        self.locks = 0  # rows and leases whose path runs through here
        self.leases = 0  # leases among them
        self.hits = 0  # requests that matched it
        self.used = self.created = 0  # logical time
        self.level = 0.0  # of the eviction heap at its last use
        self.priority = 0  # highest of the requests that used it
        self.returning = 0  # streams that end here and said they will return
        self.is_dead = False  # the only stream through here has ended
        self.is_saved = False  # the tiers below have its whole blocks
        self.ghosts: set[bytes] | None = None  # first pages of what was evicted right behind it
        self.serial = next(_serials)  # makes orders total and repeatable
        self.stamp = -1  # of its latest entry in the eviction heap

    @property
    def length(self) -> int:
        return self.end - self.start

    @property
    def is_leaf(self) -> bool:
        return not self.children

    def __repr__(self) -> str:
        return f"node {self.serial} [{self.start}, {self.end})"


class Root(Node):
    """The empty prefix of one namespace."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(None, 0, b"", _NO_SLOTS)
        self.namespace = namespace


def path_key(node: Node) -> bytes:
    """All tokens from the root to the end of `node`."""
    return b"".join(part.key for part in path(node))


def namespace_of(node: Node) -> Namespace:
    while node.parent is not None:
        node = node.parent
    assert isinstance(node, Root)
    return node.namespace


def path(node: Node) -> list[Node]:
    """From the first node below the root to `node`."""
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    nodes.reverse()
    return nodes
