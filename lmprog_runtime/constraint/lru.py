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
    """Least recently used entries go first. Thread-safe. An entry is measured when it is put in and when it is asked
    for, since automata grow while they are used."""

    def __init__(self, most_bytes: int = DEFAULT_BYTES, most_entries: int = DEFAULT_ENTRIES) -> None:
        self.most_bytes, self.most_entries = most_bytes, most_entries
        self.nbytes = 0
        self._entries: OrderedDict[Hashable, Sized] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, kind: type[S]) -> S | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            self._measure(key, found)
            self._shrink()
            return found if isinstance(found, kind) else None

    def put(self, key: Hashable, value: Sized) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            self._measure(key, value)
            self._shrink()

    def _measure(self, key: Hashable, value: Sized) -> None:
        size = value.nbytes + _ENTRY_OVERHEAD
        self.nbytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _shrink(self) -> None:
        while len(self._entries) > self.most_entries or (self.nbytes > self.most_bytes and len(self._entries) > 1):
            key, _ = self._entries.popitem(last=False)
            self.nbytes -= self._sizes.pop(key)

    def __len__(self) -> int:
        return len(self._entries)
