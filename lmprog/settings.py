"""Which backend a program runs on when the call does not say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from lmprog.backends.base import Backend
from lmprog.errors import InvalidArgument, NoBackend

_in_context: ContextVar[Backend | None] = ContextVar("lmprog_backend", default=None)
_set_last: list[Backend] = []  # what contexts that never set one fall back to; at most one item


def set_default_backend(backend: Backend) -> None:
    """Run programs on `backend` from here on, in this context (thread or task) and in those started from it.

    A context that never set one, such as a bare thread, uses the one that was set last anywhere.
    """
    _in_context.set(checked_backend(backend))
    _set_last[:] = [backend]


@contextlib.contextmanager
def use_backend(backend: Backend) -> Iterator[Backend]:
    """`with use_backend(b):` - the default of this context inside the block, and of nobody else."""
    token = _in_context.set(checked_backend(backend))
    try:
        yield backend
    finally:
        _in_context.reset(token)


def default_backend() -> Backend:
    """Raises NoBackend when none was set."""
    backend = _in_context.get() or next(iter(_set_last), None)
    if backend is None:
        raise NoBackend("No backend is set;", hint="pass backend=... or call lmprog.set_default_backend(...) first.")
    return backend


def checked_backend(backend: Any) -> Backend:
    if not isinstance(backend, Backend):
        raise InvalidArgument(
            f"backend must be an lmprog backend, not {backend!r};",
            hint='for a model on this machine write lmprog.Runtime("smollm2-135m").',
        )
    return backend


def flush_cache(backend: Backend | None = None) -> None:
    """Drop all cached prefixes that no running program holds."""
    (backend or default_backend()).flush_cache()


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    return (backend or default_backend()).server_info()
