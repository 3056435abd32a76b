"""Waiting for states, blocking or under asyncio. Nothing polls: a waiter looks again when what it watches changes."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lmprog import turns
from lmprog.timer import timer

if TYPE_CHECKING:
    from lmprog.executor import Executor

Callback = Callable[[], object]
Predicate = Callable[[], bool]


def settle(executors: Sequence[Executor], is_over: Predicate) -> None:
    """Block until `is_over()`, which is looked up again whenever something changes in one of `executors`."""
    if is_over():
        return
    for each in executors:
        each.refuse_to_deadlock()
    turns.serve(is_over)
    if timer.is_current_thread():
        _settle_on_timer(executors, is_over)
        return
    changed = threading.Event()
    watch = _Watch(executors, changed.set)
    while watch.again() and not is_over():
        changed.wait()
        changed.clear()


def _settle_on_timer(executors: Sequence[Executor], is_over: Predicate) -> None:
    """What the reader waits for may need this very thread, see `lmprog.timer`."""
    watch = _Watch(executors, timer.wake)
    while (alarm := timer.next_due(lambda: watch.again() and is_over())) is not None:
        alarm.run()
        turns.serve(is_over)


async def settle_async(executors: Sequence[Executor], is_over: Predicate) -> None:
    """`settle` that lets the event loop run."""
    if is_over():
        return
    import asyncio

    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: then nobody waits any more
            loop.call_soon_threadsafe(changed.set)

    watch = _Watch(executors, notify)
    while watch.again() and not is_over():
        await changed.wait()
        changed.clear()


class _Watch:
    """Calls `notify` at a change. Watching comes before looking, so that no change is missed in between."""

    def __init__(self, executors: Sequence[Executor], notify: Callback) -> None:
        self._unwatched = list(executors)
        self._notify = notify

    def again(self) -> bool:
        """Watch those that have changed since. Always True."""
        while self._unwatched:
            executor = self._unwatched.pop()
            executor.subscribe(_never, partial(self._changed, executor))
        return True

    def _changed(self, executor: Executor) -> None:
        self._unwatched.append(executor)
        self._notify()


def _never() -> bool:
    return False


def is_in_event_loop() -> bool:
    if "asyncio" not in sys.modules:
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
