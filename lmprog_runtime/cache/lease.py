"""A lock that outlives the sequence that made it: held by a live program stream between two requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmprog_runtime.cache.node import Node


class Lease:
    """Made and closed by `CacheManager`. `node` is the locked end of the stream's prefix; None when nothing is locked:
    before the first request, after the manager took the lock back, and after the close."""

    __slots__ = ("closed", "node")

    def __init__(self) -> None:
        self.node: Node | None = None
        self.closed = False
