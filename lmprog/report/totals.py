"""A run in numbers."""

from __future__ import annotations

import time
from typing import NamedTuple

from lmprog.backends.base import Usage
from lmprog.record import Record


class Totals(NamedTuple):
    """Of a record and all below it, each model call counted once."""

    calls: int  # model calls
    failed: int  # steps that failed
    usage: Usage
    seconds: float  # from the start to the end, or to now

    @property
    def computed(self) -> int:
        """Tokens that the model read or sampled: what the work cost."""
        usage = self.usage
        return usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens - usage.forced_tokens


def totals(record: Record) -> Totals:
    below = list(record.walk())
    steps = [each for each in below if each.kind not in ("program", "branch")]
    return Totals(
        calls=sum(is_call(each) for each in steps),
        failed=sum(each.error is not None for each in steps),
        usage=record.total_usage(),
        seconds=seconds_of(record),
    )


def is_call(record: Record) -> bool:
    return record.usage.prompt_tokens > 0 or record.usage.completion_tokens > 0


def seconds_of(record: Record) -> float:
    """How long it took, or has taken so far."""
    if not record.started:
        return 0.0
    return max(0.0, (record.ended or time.perf_counter()) - record.started)
