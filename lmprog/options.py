"""Options of a run, beside the arguments of the program and the sampling parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lmprog import arguments
from lmprog.backends.base import Backend, Routing
from lmprog.errors import InvalidArgument
from lmprog.sampling import Sampling
from lmprog.settings import checked_backend

LOWEST_PRIORITY = -(2**31)  # what servers take


@dataclass(frozen=True, slots=True)
class RunOptions:
    backend: Backend | None = None
    stream: bool = False
    timeout: float | None = None  # seconds
    retries: int = 0
    num_api_spec_tokens: int | None = None  # see `lmprog.backends.speculation`
    cache: bool | None = None  # this and the two below: see `Routing`; None: as the program that calls, if one does
    cache_salt: str | None = None
    priority: int | None = None
    sampling: Sampling = Sampling()  # noqa: RUF009 - frozen, nothing to share by mistake

    def updated(self, given: Mapping[str, Any]) -> RunOptions:
        """Checked options over these. All names must be known."""
        sampling = {name: value for name, value in given.items() if name in arguments.CHECKS}
        own = {name: _CHECKS[name](value) for name, value in given.items() if name in RUN_OPTIONS}
        return replace(self, **own, sampling=arguments.sampling_from(sampling).over(self.sampling))

    def on(self, backend: Backend) -> Backend:
        """The backend as a run with these options sees it."""
        if self.num_api_spec_tokens is None:
            return backend
        from lmprog.backends.speculation import speculating

        return speculating(backend, self.num_api_spec_tokens)

    def routing(self, inherited: Routing) -> Routing:
        given: dict[str, Any] = {"cache": self.cache, "cache_salt": self.cache_salt, "priority": self.priority}
        return inherited._replace(**{name: value for name, value in given.items() if value is not None})


def is_option(name: str) -> bool:
    return name in RUN_OPTIONS or name in arguments.CHECKS


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _salt(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"cache_salt must be a text, not {value!r}.")
    return value


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "backend": _optional(checked_backend),
    "stream": functools.partial(arguments.flag, "stream"),
    "timeout": _optional(functools.partial(arguments.number(0, is_open=True), "timeout")),
    "retries": functools.partial(arguments.integer(0), "retries"),
    "num_api_spec_tokens": _optional(functools.partial(arguments.integer(1), "num_api_spec_tokens")),
    "cache": _optional(functools.partial(arguments.flag, "cache")),
    "cache_salt": _optional(_salt),
    "priority": _optional(functools.partial(arguments.integer(LOWEST_PRIORITY), "priority")),
}
RUN_OPTIONS = tuple(_CHECKS)
