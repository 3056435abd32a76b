"""What all states of one run share: the backend, the settings, and the list of all that must stop when the run does."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

from lmprog.backends.base import Backend
from lmprog.errors import UnsupportedParameter
from lmprog.executor import Executor, Settings
from lmprog.sampling import Sampling
from lmprog.timer import Alarm, timer

if TYPE_CHECKING:
    from lmprog.state import State

SEED_BITS = 53  # seeds travel as JSON numbers; beyond this some readers round them


class RunContext:
    root: State  # set by the state itself

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend, self.settings = backend, settings
        self.is_body_running = True
        self._executors: list[Executor] = []  # the root's first, then those of its branches
        self._calls: list[RunContext] = []  # runs that the program started
        self._supported: set[str] = set()
        self._alarm: Alarm | None = None
        self._lock = threading.Lock()
        self._running = 0  # executors that are not done

    def limit(self, seconds: float, error: BaseException) -> None:
        """Stop the run with `error` unless it is over in time."""
        self._alarm = timer.call_later(seconds, partial(self.stop, error))

    def executor_is_done(self) -> None:
        with self._lock:
            self._running -= 1
            is_over = self._running == 0
        if is_over and self._alarm is not None:
            self._alarm.cancel()

    def require(self, parameters: Iterable[str]) -> None:
        """UnsupportedParameter, by name, for what the backend does not have."""
        for parameter in parameters:
            if parameter in self._supported:
                continue
            if not self.backend.supports(parameter):
                raise UnsupportedParameter(
                    f"The {self.backend.name} backend has no {parameter!r};",
                    hint="leave it out or use another backend.",
                )
            self._supported.add(parameter)

    def require_sampling(self, sampling: Sampling) -> None:
        # samples are branches: every backend has them
        self.require("logprobs" if name == "best_of" else name for name in sampling.given() if name != "n")

    def add(self, executor: Executor) -> None:
        self._executors.append(executor)
        with self._lock:
            self._running += 1

    def add_call(self, call: RunContext) -> None:
        self._calls.append(call)

    def end(self) -> None:
        """The program's body is over: all states close as soon as their steps have run."""
        self.is_body_running = False
        for executor in self._executors:
            executor.end()

    def stop(self, error: BaseException) -> None:
        """Fail all that still runs, the runs that the program started included."""
        self.is_body_running = False
        for executor in self._executors:
            executor.fail(error)
        for call in self._calls:
            call.stop(error)


current: ContextVar[RunContext | None] = ContextVar("lmprog_run", default=None)  # the run whose body this is


def branch_seed(seed: int, path: tuple[int, ...]) -> int:
    """The seed of a branch: a function of the run's seed and the branch's path only. The root keeps the seed."""
    if not path:
        return seed
    digest = hashlib.blake2b(f"{seed}/{'/'.join(map(str, path))}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - SEED_BITS)
