"""The folder where lmprog keeps models, and how something gets into it: whole or not at all, once, by one process."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import filelock
from tqdm import tqdm

from lmprog_runtime.errors import RuntimeFault


def cache_root() -> Path:
    """LMPROG_CACHE, or ~/.cache/lmprog."""
    return Path(os.environ.get("LMPROG_CACHE") or Path.home() / ".cache" / "lmprog").expanduser()


def models_root() -> Path:
    return cache_root() / "models"


def store_once(target: Path, fill: Callable[[Path], None], *, needed_bytes: int) -> None:
    """Make the folder `target` by calling `fill` with an empty folder next to it, unless it exists already.

    Safe when several processes do so at once: one fills, the others wait. Whatever fails leaves nothing behind.
    Raises RuntimeFault when there is no space (it is checked first) or the folder cannot be written.
    """
    with storage_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_process(target):
            if target.exists():
                return
            _check_space(target.parent, needed_bytes)
            with _staging(target) as staging:
                fill(staging)
                staging.rename(target)


@contextmanager
def replace_file(target: Path) -> Iterator[Path]:
    """Gives a path to write to; what is there at the end becomes `target`, and nothing changes when there is nothing.

    Only one process at a time is inside, per target. Who has the old file open keeps it. Raises RuntimeFault when there
    is no space or the folder cannot be written.
    """
    with storage_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_process(target):
            staging = target.parent / f".{target.name}.partial"
            try:
                yield staging
                if staging.exists():
                    staging.replace(target)
            finally:
                staging.unlink(missing_ok=True)


@contextmanager
def _only_process(target: Path) -> Iterator[None]:
    lock = filelock.FileLock(target.parent / f".{target.name}.lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        announce(f"Waiting for another process that is storing {target.name} ...")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """An empty folder, gone afterwards. Only the lock's holder is here: an old one was left by a killed process."""
    staging = target.parent / f".{target.name}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_space(folder: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise RuntimeFault(
            f"{folder} has {free / 1e6:,.0f} MB free and {needed_bytes / 1e6:,.0f} MB are needed; free some space, or "
            "set LMPROG_CACHE to a folder on another disk."
        )


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Makes one sentence of a full disk or a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            reason = "the disk is full; free some space, or set LMPROG_CACHE to a folder on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            reason = f"it cannot be written ({error.strerror}); set LMPROG_CACHE to a folder that can"
        else:
            raise
        raise RuntimeFault(f"Nothing was stored in {folder}: {reason}.") from error


def announce(line: str) -> None:
    """Tell whoever waits what is going on, also where no bar can be drawn."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress_bar(total_bytes: int, label: str, *, is_shown: bool) -> Iterator[tqdm[NoReturn]]:
    """A bar on stderr when that is a terminal."""
    hide = None if is_shown else True  # None: tqdm looks whether it is one
    with tqdm(total=total_bytes, desc=label, unit="B", unit_scale=True, disable=hide, leave=False) as bar:
        yield bar
