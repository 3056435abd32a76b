"""Which state a thread runs next. States take turns instead of nesting, so a chain of thousands needs no deep stack."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Turn = Callable[[], None]


class _Turns(threading.local):
    def __init__(self) -> None:
        self.queue: deque[Turn] = deque()
        self.is_running = False


_of_thread = _Turns()


def take(turn: Turn) -> None:
    """Run `turn` now, or after the one that this thread is running."""
    turns = _of_thread
    if turns.is_running:
        turns.queue.append(turn)
        return
    turns.is_running = True
    try:
        turn()
        while turns.queue:
            turns.queue.popleft()()
    finally:
        turns.is_running = False
        if turns.queue:  # an interrupt came: the others still get their turns
            take(turns.queue.popleft())


def serve(is_over: Callable[[], bool]) -> None:
    """Before this thread blocks inside a turn: what it waits for may be queued behind that very turn."""
    queue = _of_thread.queue
    while queue and not is_over():
        queue.popleft()()
