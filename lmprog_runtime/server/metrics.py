"""Prometheus metrics, in the shapes (and, after the prefix, the names) of vLLM and SGLang: dashboards port over.

Counters only ever grow; rates are the scraper's business. One label, `model_name`; no per-request labels.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lmprog_runtime.request import Completion

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)

_COUNTERS = {
    "prompt_tokens": "Prompt tokens of finished requests",
    "generation_tokens": "Tokens generated",
    "cached_tokens": "Prompt tokens that were not computed again",
    "forced_tokens": "Tokens that a constraint forced, appended without sampling",
    "num_requests": "Requests that arrived",
    "num_aborted_requests": "Requests whose client went away",
    "num_so_requests": "Requests with a constraint",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache",
    "evicted_tokens": "Tokens evicted from the prefix cache",
    "failed_steps": "Steps of the model that crashed",
}
_GAUGES = {
    "num_requests_running": "Requests in the current batch",
    "num_requests_waiting": "Requests waiting for a place in the batch",
    "kv_cache_usage_perc": "Share of the KV pool in use, 0 to 1",
    "token_usage": "Share of the KV pool in use, 0 to 1 (the name of SGLang)",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Arrival to first token", SECONDS),
    "inter_token_latency_seconds": ("Mean time between the tokens of a request", SECONDS),
    "e2e_request_latency_seconds": ("Arrival to end", SECONDS),
    "request_queue_time_seconds": ("Arrival to first step", SECONDS),
    "request_prompt_tokens": ("Prompt tokens of a request", TOKENS),
    "request_generation_tokens": ("Generated tokens of a request", TOKENS),
}


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._label = model_name
        names = ["model_name"]
        self._counters = {k: Counter(f"lmprog:{k}", v, names, registry=self.registry) for k, v in _COUNTERS.items()}
        self._gauges = {k: Gauge(f"lmprog:{k}", v, names, registry=self.registry) for k, v in _GAUGES.items()}
        self._histograms = {
            name: Histogram(f"lmprog:{name}", text, names, buckets=buckets, registry=self.registry)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self._success = Counter(
            "lmprog:request_success", "Finished requests", ["model_name", "finished_reason"], registry=self.registry
        )
        self._seen: dict[str, float] = {}

    def count(self, name: str, amount: float = 1) -> None:
        self._counters[name].labels(self._label).inc(amount)

    def finished(self, result: Completion) -> None:
        """Counters and histograms of one finished generation."""
        usage, timing = result.usage, result.timing
        self.count("prompt_tokens", usage.prompt_tokens)
        self.count("cached_tokens", usage.cached_tokens)
        self.count("generation_tokens", usage.completion_tokens)
        self.count("forced_tokens", usage.forced_tokens)
        self._success.labels(self._label, result.finish_reason).inc()
        self._observe("time_to_first_token_seconds", timing["first_token"])
        self._observe("e2e_request_latency_seconds", timing["total"])
        self._observe("request_queue_time_seconds", timing["queue"])
        self._observe("request_prompt_tokens", usage.prompt_tokens)
        self._observe("request_generation_tokens", usage.completion_tokens)
        if usage.completion_tokens > 1:
            between = (timing["total"] - timing["first_token"]) / (usage.completion_tokens - 1)
            self._observe("inter_token_latency_seconds", between)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].labels(self._label).observe(value)

    def update(self, gauges: Mapping[str, float], totals: Mapping[str, float]) -> None:
        """Take over the engine's gauges, and what its own totals have grown by since the last time."""
        for name, value in gauges.items():
            self._gauges[name].labels(self._label).set(value)
        for name, value in totals.items():
            self.count(name, max(0.0, value - self._seen.get(name, 0.0)))
            self._seen[name] = value

    def text(self) -> bytes:
        """The exposition format that Prometheus scrapes."""
        return generate_latest(self.registry)
