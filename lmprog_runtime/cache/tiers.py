"""KV below the pool: a host tier and a file tier behind one interface.

Both hold blocks of `block_tokens` tokens, each under a hash of the namespace, the layout of the KV and all tokens up to
the block's end, so a block is right wherever it is found, in whichever process. A block is looked up in the host tier,
then in the file tier; what leaves the host tier is written to the file tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.events import hasher
from lmprog_runtime.cache.file_tier import FileTier
from lmprog_runtime.cache.file_worker import FileWorker
from lmprog_runtime.cache.host_tier import HostTier
from lmprog_runtime.cache.kv_codec import Rows, codec_for
from lmprog_runtime.cache.node import Namespace
from lmprog_runtime.cache.slots import Slots

_STAGING_BYTES = 64 * 2**20
"""Host tier of a file tier that was given none: where prefetched blocks wait."""


class KvStore(Protocol):
    """The part of an executor that the tiers use."""

    dtype: str  # of the weights: others give other KV
    kv_dtype: str

    def read_kv(self, slots: Slots) -> Rows: ...

    def write_kv(self, slots: Slots, data: Rows) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierConfig:
    host_bytes: int = 0
    directory: str | Path | None = None
    file_bytes: int = 8 * 2**30
    block_tokens: int = 64
    codec: str = "raw"  # raw is exact; bfloat16 and int8 take less memory and change results a little
    write_on_hit: int | None = 1  # copy down at the n-th request that matches; 0: once computed; None: when evicted

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ValueError(f"block_tokens is {self.block_tokens}; it must be at least 1.")
        if self.host_bytes < 0 or self.file_bytes < 0:
            raise ValueError("host_bytes and file_bytes are sizes in bytes; they cannot be negative.")
        if not self.host_bytes and self.directory is None:
            raise ValueError("A tier needs host_bytes, a directory, or both.")


class Loaded(NamedTuple):
    """Tokens copied into the pool, by where they came from."""

    host: int
    file: int


@dataclass(slots=True)
class TierCounters:
    """In tokens, since the start."""

    host_hits: int = 0
    file_hits: int = 0
    saved: int = 0


class Tiers:
    """One caller thread. `close` waits for what is still to be written."""

    def __init__(self, config: TierConfig, store: KvStore) -> None:
        """OSError when the directory cannot be used; ValueError for an unknown codec."""
        self.config = config
        self.counters = TierCounters()
        self.host = HostTier(config.host_bytes or _STAGING_BYTES)
        self.files: FileWorker | None = None
        if config.directory is not None:
            self.files = FileWorker(FileTier(config.directory, config.file_bytes))
        self._store = store
        self._codec = codec_for(config.codec, store.kv_dtype)
        bytes_per_token = store.read_kv(np.zeros(1, dtype=np.int32)).shape[1]
        self._layout = (store.dtype, store.kv_dtype, config.codec, config.block_tokens, bytes_per_token)

    def load(self, namespace: Namespace, key: bytes, slots: Slots, start: int, limit: int) -> Loaded:
        """Fill slots[start:end] of a row for the longest known run of tokens [start, end), end <= limit."""
        position, from_host, from_file = start, 0, 0
        for block_key, first, last in self._blocks(namespace, key, start, limit):
            block = self.host.get(block_key)
            is_host = block is not None
            if block is None and self.files is not None:
                block = self.files.get(block_key)
            if block is None:
                break
            end = min(last, limit)
            rows = self._codec.decode(block, last - first)
            self._store.write_kv(slots[position:end], rows[position - first : end - first])
            from_host += (end - position) * is_host
            from_file += (end - position) * (not is_host)
            position = end
        self.counters.host_hits += from_host
        self.counters.file_hits += from_file
        return Loaded(from_host, from_file)

    def prefetch(self, namespace: Namespace, key: bytes, start: int) -> None:
        """Begin to bring into the host tier what the file tier knows of a key from `start` on."""
        if self.files is not None:
            blocks = self._blocks(namespace, key, start, keys.count(key))
            wanted = [block_key for block_key, _, _ in blocks if block_key not in self.host]
            if wanted:
                self.files.fetch(wanted, self.host.put)

    def save(self, namespace: Namespace, key: bytes, slots: Slots, start: int) -> None:
        """Copy down the KV of every whole block that ends behind `start`, unless it is held already. `slots` are those
        of all tokens of `key`."""
        for block_key, first, last in self._blocks(namespace, key, start, keys.count(key)):
            if block_key not in self.host and (self.files is None or block_key not in self.files):
                self._put(block_key, self._codec.encode(self._store.read_kv(slots[first:last])))
                self.counters.saved += last - first

    def clear(self) -> None:
        """Forget everything, files included."""
        self.host.clear()
        if self.files is not None:
            self.files.drain()
            self.files.files.clear()
            self.host.clear()  # what was on its way up meanwhile

    def close(self) -> None:
        """Write to the file tier, if there is one, what only the host tier holds. Idempotent."""
        if self.files is not None:
            self.files.close(self.host.items())
            self.files = None

    def _put(self, block_key: str, block: bytes) -> None:
        left = self.host.put(block_key, block) if self.config.host_bytes else [(block_key, block)]
        if self.files is not None:
            for item in left:
                self.files.put(*item)

    def _blocks(self, namespace: Namespace, key: bytes, start: int, limit: int) -> Iterator[tuple[str, int, int]]:
        """Hash, first token and end of each whole block of a key that ends behind `start` and begins before `limit`."""
        size = self.config.block_tokens
        state = hasher((*namespace, *self._layout))
        for first in range(0, min(keys.count(key) - size + 1, limit), size):
            state.update(keys.piece(key, first, first + size))
            if first + size > start:
                yield state.hexdigest(), first, first + size
