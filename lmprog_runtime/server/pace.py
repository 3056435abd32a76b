"""How fast an engine goes: what happened between two readings of its statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Pace(NamedTuple):
    computed: float  # tokens per second through the model
    generated: float  # tokens per second
    hit_rate: float | None  # share of the prompt tokens looked up that were found; None when none were looked up


def pace_between(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> Pace:
    """`before` and `now` as `LocalRuntime.statistics` gives them, `seconds` apart."""
    cache, old = now["radix_cache"], before["radix_cache"]
    queried = cache["queried_tokens"] - old["queried_tokens"]
    hits = cache["hit_tokens"] - old["hit_tokens"]
    return Pace(
        (now["computed_tokens"] - before["computed_tokens"]) / seconds,
        (now["generated_tokens"] - before["generated_tokens"]) / seconds,
        hits / queried if queried else None,
    )


def busy_line(now: Mapping[str, Any], pace: Pace) -> str:
    """For the log."""
    cache = now["radix_cache"]
    rate = "-" if pace.hit_rate is None else f"{pace.hit_rate:.0%}"
    return (
        f"running {now['running']}, waiting {now['waiting']}, computed {pace.computed:.0f} tok/s, "
        f"generated {pace.generated:.0f} tok/s, pool {cache['used_slots'] / cache['total_slots']:.0%}, hit rate {rate}"
    )
