"""When the parts of a request happened, and how long the parts of all requests take."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class Timing:
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    first_token: float | None = None

    def seconds(self) -> dict[str, float]:
        now = time.monotonic()
        started = self.started if self.started is not None else now
        first = self.first_token if self.first_token is not None else now
        return {
            "queue": started - self.submitted,
            "first_token": first - self.submitted,
            "total": now - self.submitted,
        }


BOUNDS = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Upper bounds of the buckets of `Durations`, in seconds; one more bucket has no bound."""


class DurationCounts(NamedTuple):
    buckets: tuple[int, ...]  # not cumulative; one more than BOUNDS
    seconds: float  # sum


class Durations:
    """A histogram of durations. Any thread may add to it; it costs about a microsecond."""

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        with self._lock:
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def read(self) -> DurationCounts:
        with self._lock:
            return DurationCounts(tuple(self._buckets), self._seconds)
