"""A cache bounded by the bytes of what it holds, which may grow after it was put in."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol, TypeVar

DEFAULT_BYTES = 256 * 2**20
DEFAULT_ENTRIES = 2_000
_ENTRY_OVERHEAD = 2_048  # bytes: keys, Python objects


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


S = TypeVar("S", bound=Sized)


class LruByBytes:
    """Least recently used entries go first. Thread-safe. Entries grow while they are used, whether they are asked for
    again or not; whoever makes one grow says so (`remeasure`), which lets others go where the bytes do not suffice."""

    def __init__(self, most_bytes: int = DEFAULT_BYTES, most_entries: int = DEFAULT_ENTRIES) -> None:
        self.most_bytes, self.most_entries = most_bytes, most_entries
        self.nbytes = 0
        self._entries: OrderedDict[Hashable, Sized] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, kind: type[S]) -> S | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
        return found if isinstance(found, kind) else None

    def put(self, key: Hashable, value: Sized) -> None:
        size = _size(value)
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            self._record(key, size)

    def remeasure(self, key: Hashable) -> None:
        """The entry of this key has grown. Nothing to do where it has left the cache."""
        with self._lock:
            entry = self._entries.get(key)
        if entry is None:
            return
        size = _size(entry)  # outside of the lock: it waits where another thread is at work in this automaton
        with self._lock:
            if self._entries.get(key) is entry:
                self._record(key, size)

    def _record(self, key: Hashable, size: int) -> None:
        self.nbytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self._shrink()

    def _shrink(self) -> None:
        while len(self._entries) > self.most_entries or (self.nbytes > self.most_bytes and len(self._entries) > 1):
            key, _ = self._entries.popitem(last=False)
            self.nbytes -= self._sizes.pop(key)

    def __len__(self) -> int:
        return len(self._entries)


def _size(value: Sized) -> int:
    return value.nbytes + _ENTRY_OVERHEAD
