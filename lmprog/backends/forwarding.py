"""A backend around another one: what it does not change is the other's own."""

from __future__ import annotations

from typing import Any

from lmprog.backends.base import Backend


class ForwardingBackend(Backend):
    """Base of backends that change only the streams of `backend`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.defaults = backend.name, backend.defaults

    def supports(self, parameter: str) -> bool:
        return self._backend.supports(parameter)

    def warm_prefix(self, text: str) -> None:
        self._backend.warm_prefix(text)

    def flush_cache(self) -> None:
        self._backend.flush_cache()

    def server_info(self) -> dict[str, Any]:
        return self._backend.server_info()

    def close(self) -> None:
        self._backend.close()
