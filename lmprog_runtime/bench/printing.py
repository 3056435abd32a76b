"""The result of a serving benchmark in the lines that SGLang's bench_serving prints, so that two can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

WIDTH = 50
_HEAD = (
    ("Backend:", "backend"),
    ("Traffic request rate:", "request_rate"),
    ("Max request concurrency:", "max_concurrency"),
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Total cached tokens:", "total_cached_tokens"),
    ("Cache hit rate:", "cache_hit_rate"),
    ("Cache at the start:", "cache_state"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Input token throughput (tok/s):", "input_throughput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_throughput"),
    ("Concurrency:", "concurrency"),
    ("Peak memory (MB):", "peak_memory_mb"),
)
_PARTS = (
    ("End-to-End Latency", "E2E Latency", "e2e_latency"),
    ("Time to First Token", "TTFT", "ttft"),
    ("Time per Output Token (excl. 1st token)", "TPOT", "tpot"),
    ("Inter-Token Latency", "ITL", "itl"),
)
_LABELS = (("Mean", "mean"), ("Median", "median"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"))


def result_lines(result: Mapping[str, Any]) -> Iterator[str]:
    yield " Serving Benchmark Result ".center(WIDTH, "=")
    for label, key in _HEAD:
        yield _line(label, result[key])
    for title, short, key in _PARTS:
        yield title.center(WIDTH, "-")
        for label, prefix in _LABELS:
            yield _line(f"{label} {short} (ms):", result[f"{prefix}_{key}_ms"])
    yield _line("Max ITL (ms):", result["max_itl_ms"])
    yield "=" * WIDTH


def shown(value: Any) -> str:
    """A number for people; what is not known is n/a."""
    if value is None:
        return "n/a"
    return f"{value:.2f}" if isinstance(value, float) and value != float("inf") else str(value)


def _line(label: str, value: Any) -> str:
    return f"{label:<40} {shown(value):<10}".rstrip()
