"""Locks that outlive the sequence that made them: held by live program streams between two requests.

Leases are limited, so that programs cannot pin the whole pool, and give way when running work needs the slots.
"""

from __future__ import annotations

from lmprog_runtime.cache.node import Node
from lmprog_runtime.cache.radix_tree import RadixTree


class Lease:
    """`node` is the end of the stream's prefix in the tree; None before the first request, after the lock was taken
    back and after the close: the stream then simply matches again."""

    __slots__ = ("__weakref__", "is_closed", "is_soft", "node")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.is_soft = False  # will return: not locked, evicted last
        self.is_closed = False


class LeaseBook:
    """All leases that hold something."""

    def __init__(self, tree: RadixTree, limit: int) -> None:
        self._tree = tree
        self.limit = limit  # tokens
        self.locking: dict[Lease, None] = {}  # least recently used first
        self.revoked = 0

    def hold(self, lease: Lease, node: Node) -> None:
        """`node` comes with a lock, which the lease takes over; a closed lease drops it. What the lease held before is
        let go, and beyond the limit the least recently used leases lose their locks."""
        self._let_go(lease)
        if lease.is_closed:
            self._tree.unlock(node)
            return
        lease.node = node
        self.locking[lease] = None
        self._tree.count_lease(node, 1)
        while self._tree.leased > self.limit:
            self.revoke()

    def soften(self, lease: Lease) -> None:
        """The stream waits for others and will return: no lock, but evicted after everything else."""
        node = lease.node
        if node is not None and not lease.is_soft:
            self._let_go(lease)
            lease.node, lease.is_soft = node, True
            self._tree.count_return(node, 1)

    def close(self, lease: Lease) -> Node | None:
        """Returns where it ended. Idempotent."""
        node = lease.node
        lease.is_closed = True
        self._let_go(lease)
        return node

    def revoke(self) -> bool:
        """Take the lock of the least recently used lease. False: none locks anything."""
        for lease in self.locking:
            self._let_go(lease)
            self.revoked += 1
            return True
        return False

    def _let_go(self, lease: Lease) -> None:
        node, lease.node = lease.node, None
        if node is None:
            return
        if lease.is_soft:
            lease.is_soft = False
            self._tree.count_return(node, -1)
        else:
            del self.locking[lease]
            self._tree.count_lease(node, -1)
            self._tree.unlock(node)
