"""Several settings measured in turn, round by round, so that the machine's moods hit all of them alike."""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lmprog_runtime.bench.printing import shown

COMPARED = (
    ("duration", "Benchmark duration (s)"),
    ("request_throughput", "Request throughput (req/s)"),
    ("input_throughput", "Input token throughput (tok/s)"),
    ("output_throughput", "Output token throughput (tok/s)"),
    ("mean_ttft_ms", "Mean TTFT (ms)"),
    ("p99_ttft_ms", "P99 TTFT (ms)"),
    ("mean_tpot_ms", "Mean TPOT (ms)"),
    ("mean_e2e_latency_ms", "Mean E2E Latency (ms)"),
    ("total_cached_tokens", "Total cached tokens"),
    ("cache_hit_rate", "Cache hit rate"),
    ("failed", "Failed requests"),
)

Runs = dict[str, list[dict[str, Any]]]


class Setting(NamedTuple):
    label: str
    options: argparse.Namespace

    @classmethod
    def parse(cls, text: str, common: list[str], parser: argparse.ArgumentParser) -> Setting:
        """`text` is quoted flags; they come after the common ones, and so win."""
        return cls(text.strip() or "as given", parser.parse_args([*common, *shlex.split(text)]))


def compare(settings: Sequence[tuple[str, Callable[[], dict[str, Any]]]], rounds: int) -> Runs:
    """Results by label, one per round. The order within a round turns, so that none is always first."""
    runs: Runs = {label: [] for label, _ in settings}
    for number in range(rounds):
        start = number % len(settings)
        for label, measure in [*settings[start:], *settings[:start]]:
            runs[label].append(measure())
    return runs


def median_of(results: Sequence[dict[str, Any]], key: str) -> float | None:
    """None when a round has no such number."""
    values = [result[key] for result in results]
    return None if None in values else statistics.median(values)


def comparison_lines(runs: Runs) -> list[str]:
    """Medians over the rounds, and each setting's ratio to the first."""
    labels = list(runs)
    width = max(14, *(len(label) + 2 for label in labels))
    lines = [f"{'':<34}" + "".join(f"{label:>{width}}" for label in labels) + f"{'ratios':>12}"]
    for key, title in COMPARED:
        values = [median_of(runs[label], key) for label in labels]
        cells = "".join(f"{shown(value):>{width}}" for value in values)
        lines.append(f"{title:<34}{cells}{'':>4}" + " ".join(_ratio(value, values[0]) for value in values[1:]))
    return lines


def _ratio(value: float | None, first: float | None) -> str:
    return "n/a" if value is None or not first else f"{value / first:.2f}x"


def print_comparison(runs: Runs) -> None:
    print("\n".join(comparison_lines(runs)))
