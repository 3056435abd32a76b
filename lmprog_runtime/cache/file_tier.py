"""Blocks of KV in files, for the next process, or for several at once.

A block is one file, named by its key, written under another name and then renamed: a reader sees all of it or nothing.
Its checksum covers name and content, so a torn, truncated or exchanged file is a miss, and is removed. Recency is the
file's modification time. Any process may delete any file at any time: the others see a miss.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAGIC = b"lmprog-kv-1\n"
_DIGEST_BYTES = 16
_STALE_SECONDS = 600
"""Age from which on an unfinished file is taken for the leftover of a killed process."""
_LOW_WATER = 0.9
"""Share of the limit down to which files are removed, so that not every write has to look at all of them."""


class FileTier:
    name = "file"

    def __init__(self, directory: str | Path, max_bytes: int) -> None:
        """OSError when the directory cannot be made or written."""
        self.directory = Path(directory)
        self.max_bytes = max_bytes
        self.corrupt = 0  # files that failed their checksum
        self._names = itertools.count()
        self._blocks.mkdir(parents=True, exist_ok=True)
        (self.directory / "lock").touch()
        self._used_bytes = self._shrink(0)

    @property
    def used_bytes(self) -> int:
        """As far as this process knows: at its last look at the directory, and what it has written since."""
        return self._used_bytes

    def __contains__(self, key: str) -> bool:
        return self._path(key).exists()

    def get(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            content = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        head = len(_MAGIC) + _DIGEST_BYTES
        block = content[head:]
        if content[:head] != _MAGIC + _checksum(key, block):
            self.corrupt += 1
            path.unlink(missing_ok=True)
            return None
        return block

    def put(self, key: str, block: bytes) -> None:
        """OSError when the disk is full or gone; no part of the block is left then."""
        size = len(_MAGIC) + _DIGEST_BYTES + len(block)
        if size > self.max_bytes:
            return
        if self._used_bytes + size > self.max_bytes:
            self._used_bytes = self._shrink(size)
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        unfinished = path.parent / f"{os.getpid()}-{next(self._names)}.tmp"
        try:
            with unfinished.open("wb") as file:
                file.write(_MAGIC + _checksum(key, block))
                file.write(block)
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._used_bytes += size

    def clear(self) -> None:
        for path in self._blocks.glob("*/*.kv"):
            path.unlink(missing_ok=True)
        self._used_bytes = 0

    @property
    def _blocks(self) -> Path:
        return self.directory / "blocks"

    def _path(self, key: str) -> Path:
        return self._blocks / key[:2] / f"{key}.kv"

    def _shrink(self, needed: int) -> int:
        """Remove the least recently used files until `needed` bytes fit. Returns the bytes that are left.
        One process at a time, so that two do not both remove half."""
        with self._locked():
            files = sorted(self._files())
            used = sum(size for _, size, _ in files)
            if used + needed <= self.max_bytes:
                return used
            for _, size, path in files:
                if used + needed <= self.max_bytes * _LOW_WATER:
                    break
                path.unlink(missing_ok=True)
                used -= size
            return used

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, size and path of each block; leftovers of killed processes are removed on the way."""
        for path in self._blocks.glob("*/*"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            if path.suffix == ".kv":
                yield stat.st_mtime, stat.st_size, path
            elif time.time() - stat.st_mtime > _STALE_SECONDS:
                path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _checksum(key: str, block: bytes) -> bytes:
    state = hashlib.blake2b(key.encode(), digest_size=_DIGEST_BYTES)
    state.update(block)
    return state.digest()
