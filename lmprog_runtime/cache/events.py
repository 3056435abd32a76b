"""What happened to cached prefixes, for routers and caches in front of this one.

A prefix is named by a hash of its namespace and all its tokens, so equal prefixes have equal names in every process and
however the tree happens to be cut into nodes. Only whole pages are reported.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.node import Namespace, Node, namespace_of, path_key


class CacheEvent(NamedTuple):
    kind: Literal["stored", "removed", "cleared"]
    namespace: Namespace  # () when cleared: all namespaces
    start: int  # position of the first token
    token_ids: tuple[int, ...]
    parent: str  # hash of the prefix before `start`
    hash: str  # hash of the prefix up to the last of `token_ids`


Listener = Callable[[CacheEvent], None]

MOST_WAITING = 100_000


class Subscription:
    """Events on their way from the cache's thread to another one. Take them with `take`."""

    def __init__(self, close: Callable[[Subscription], None]) -> None:
        self._close = close
        self._waiting: deque[CacheEvent] = deque()
        self._lock = threading.Lock()
        self.lost = 0  # events that were dropped because too many waited

    def put(self, event: CacheEvent) -> None:
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self.lost += 1
            self._waiting.append(event)

    def take(self) -> list[CacheEvent]:
        """What has come since the last call."""
        with self._lock:
            taken, self._waiting = list(self._waiting), deque()
            return taken

    def close(self) -> None:
        """No more events. Idempotent."""
        self._close(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hasher(namespace: Namespace) -> hashlib.blake2b:
    """To be fed with tokens as `keys.encode` gives them. TypeError for a namespace whose text is not stable."""
    for part in namespace:
        if part is not None and not isinstance(part, (str, int)):
            raise TypeError(f"A namespace holds strings, integers and None; {part!r} is a {type(part).__name__}.")
    return hashlib.blake2b(repr(namespace).encode(), digest_size=16)


def prefix_hash(namespace: Namespace, key: bytes) -> str:
    state = hasher(namespace)
    state.update(key)
    return state.hexdigest()


def piece_event(kind: Literal["stored", "removed"], node: Node, low: int, high: int) -> CacheEvent:
    """Tokens [low, high) of a node that is still in the tree. O(prefix)."""
    key, namespace = path_key(node), namespace_of(node)
    start, end = node.start + low, node.start + high
    return CacheEvent(
        kind,
        namespace,
        start,
        tuple(keys.decode(keys.piece(key, start, end))),
        prefix_hash(namespace, keys.piece(key, 0, start)),
        prefix_hash(namespace, keys.piece(key, 0, end)),
    )
