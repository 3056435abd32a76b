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
    """Least recently used entries go first. Thread-safe."""

    def __init__(self, most_bytes: int = DEFAULT_BYTES, most_entries: int = DEFAULT_ENTRIES) -> None:
        self.most_bytes, self.most_entries = most_bytes, most_entries
        self._entries: OrderedDict[Hashable, Sized] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, kind: type[S]) -> S | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found if isinstance(found, kind) else None

    def put(self, key: Hashable, value: Sized) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            self._shrink()

    def discard(self, key: Hashable) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def _shrink(self) -> None:
        """Sizes are measured anew: automata grow while they are used."""
        while len(self._entries) > self.most_entries:
            self._entries.popitem(last=False)
        total = self._nbytes()
        while total > self.most_bytes and len(self._entries) > 1:
            _, gone = self._entries.popitem(last=False)
            total -= gone.nbytes + _ENTRY_OVERHEAD

    def _nbytes(self) -> int:
        return sum(value.nbytes + _ENTRY_OVERHEAD for value in self._entries.values())

    @property
    def nbytes(self) -> int:
        with self._lock:
            return self._nbytes()

    def __len__(self) -> int:
        return len(self._entries)
