"""The file tier behind a thread, so that nobody waits for a write. What is still to be written can be read already."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from lmprog_runtime.cache.file_tier import FileTier

log = logging.getLogger("lmprog.cache")

_MOST_QUEUED_BYTES = 256 * 2**20


class FileWorker:
    def __init__(self, files: FileTier, most_queued_bytes: int = _MOST_QUEUED_BYTES) -> None:
        self.files = files
        self.errors = 0  # blocks that could not be read or written
        self.skipped = 0  # blocks not written because too many were waiting
        self._most_queued_bytes = most_queued_bytes
        self._queued: dict[str, bytes] = {}
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lmprog-kv-files")

    def __contains__(self, key: str) -> bool:
        return key in self._queued or key in self.files

    def get(self, key: str) -> bytes | None:
        """On the caller's thread."""
        block = self._queued.get(key)
        if block is not None:
            return block
        try:
            return self.files.get(key)
        except OSError as error:
            self._note("read", error)
            return None

    def put(self, key: str, block: bytes) -> None:
        """Write soon, unless too much waits already."""
        with self._lock:
            if self._queued_bytes + len(block) > self._most_queued_bytes:
                self.skipped += 1
                return
            self._queued[key] = block
            self._queued_bytes += len(block)
        self._thread.submit(self._write, key)

    def fetch(self, wanted: list[str], take: Callable[[str, bytes], object]) -> None:
        """Read blocks on the thread, handing each to `take`, up to the first that is missing."""
        self._thread.submit(self._fetch, wanted, take)

    def drain(self) -> None:
        """Wait for all that was asked so far."""
        self._thread.submit(int).result()

    def close(self, rest: Iterable[tuple[str, bytes]]) -> None:
        """Write `rest` and what waits, then end the thread."""
        for key, block in rest:
            self._thread.submit(self._store, key, block)
        self._thread.shutdown(wait=True)

    def _fetch(self, wanted: list[str], take: Callable[[str, bytes], object]) -> None:
        for key in wanted:
            block = self.get(key)
            if block is None:
                return
            take(key, block)

    def _write(self, key: str) -> None:
        self._store(key, self._queued[key])
        with self._lock:
            self._queued_bytes -= len(self._queued.pop(key))

    def _store(self, key: str, block: bytes) -> None:
        try:
            if key not in self.files:
                self.files.put(key, block)
        except OSError as error:
            self._note("write", error)

    def _note(self, action: str, error: OSError) -> None:
        if self.errors == 0:
            log.warning("The KV file tier cannot %s: %s. Requests go on without it.", action, error)
        self.errors += 1
