"""Numbers of a serving benchmark, under the names that SGLang's bench_serving gives them.

A number that nothing was measured for is None, never 0: no request succeeded, no answer had two tokens, the server does
not say what it had cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from lmprog_runtime.bench.outcome import Outcome

Metrics = dict[str, float | int | None]

PERCENTILES = (90, 95, 99)


def serving_metrics(outcomes: Sequence[Outcome], duration: float) -> Metrics:
    """Failed requests are counted and are part of nothing else. duration: seconds from first start to last end."""
    done = [outcome for outcome in outcomes if outcome.is_success]
    inputs, outputs = sum(o.prompt_len for o in done), sum(o.output_len for o in done)
    gaps = [gap for o in done for gap in o.itl]
    return {
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        "duration": duration,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        **_cache(done, inputs),
        "request_throughput": _per(len(done), duration),
        "input_throughput": _per(inputs, duration),
        "output_throughput": _per(outputs, duration),
        "total_throughput": _per(inputs + outputs, duration),
        "max_output_tokens_per_s": peak_tokens_per_second(done),
        "max_concurrent_requests": peak_concurrency(done),
        "concurrency": _per(sum(o.latency for o in done), duration),
        **_spread("e2e_latency", [o.latency for o in done]),
        **_spread("ttft", [o.ttft for o in done if o.ttft is not None]),
        **_spread("tpot", [value for o in done if (value := time_per_output_token(o)) is not None]),
        **_spread("itl", gaps),
        "max_itl_ms": max(gaps) * 1000 if gaps else None,
    }


def time_per_output_token(outcome: Outcome) -> float | None:
    """Seconds per token after the first; None when there is none after it."""
    if outcome.ttft is None or outcome.output_len < 2:
        return None
    return (outcome.latency - outcome.ttft) / (outcome.output_len - 1)


def peak_tokens_per_second(outcomes: Sequence[Outcome]) -> int:
    """Most output tokens in one of the seconds that follow each other from the first start on."""
    begin = min((o.start for o in outcomes), default=0.0)
    seconds = Counter(int(moment - begin) for o in outcomes for moment in o.token_times())
    return max(seconds.values(), default=0)


def peak_concurrency(outcomes: Iterable[Outcome]) -> int:
    """Most requests under way at one moment. One that ends as another starts is not under way with it."""
    events = sorted(
        [(o.start, 1) for o in outcomes] + [(o.start + o.latency, -1) for o in outcomes],
    )
    most = running = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def _cache(done: Sequence[Outcome], inputs: int) -> Metrics:
    known = [o.cached_tokens for o in done if o.cached_tokens is not None]
    if not known or len(known) < len(done):
        return {"total_cached_tokens": None, "cache_hit_rate": None}
    return {"total_cached_tokens": sum(known), "cache_hit_rate": _per(sum(known), inputs)}


def _per(amount: float, whole: float) -> float | None:
    return amount / whole if whole else None


def _spread(name: str, seconds: Sequence[float]) -> Metrics:
    """Mean, median, standard deviation and percentiles (interpolated) in milliseconds."""
    labels = ["mean", "median", "std", *(f"p{number}" for number in PERCENTILES)]
    if not seconds:
        return {f"{label}_{name}_ms": None for label in labels}
    values = np.asarray(seconds, float) * 1000
    numbers = [values.mean(), np.median(values), values.std(), *np.percentile(values, PERCENTILES)]
    return {f"{label}_{name}_ms": float(number) for label, number in zip(labels, numbers, strict=True)}
