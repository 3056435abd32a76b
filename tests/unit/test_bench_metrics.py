"""Numbers of the serving benchmark, against ones worked out by hand."""

from __future__ import annotations

import pytest

from lmprog_runtime.bench.metrics import peak_concurrency, peak_tokens_per_second, serving_metrics
from lmprog_runtime.bench.outcome import Outcome
from lmprog_runtime.bench.printing import result_lines


def outcome(start: float, latency: float, **more: object) -> Outcome:
    return Outcome(more.pop("prompt_len", 10), start=start, latency=latency, **more)


TWO = [
    outcome(0.0, 1.0, ttft=0.4, itl=[0.2, 0.4], output_len=3, cached_tokens=4),
    outcome(0.5, 2.0, ttft=1.0, itl=[1.0], output_len=2, cached_tokens=6, prompt_len=30),
]


def test_sums_and_throughputs() -> None:
    found = serving_metrics(TWO, 2.5)
    assert (found["completed"], found["failed"]) == (2, 0)
    assert (found["total_input_tokens"], found["total_output_tokens"], found["total_cached_tokens"]) == (40, 5, 10)
    assert found["cache_hit_rate"] == 0.25
    assert found["request_throughput"] == 0.8
    assert found["input_throughput"] == 16
    assert found["output_throughput"] == 2
    assert found["total_throughput"] == 18
    assert found["concurrency"] == pytest.approx(3 / 2.5)


def test_latencies_in_milliseconds() -> None:
    found = serving_metrics(TWO, 2.5)
    assert found["mean_e2e_latency_ms"] == pytest.approx(1500)
    assert found["median_ttft_ms"] == pytest.approx(700)
    assert found["p90_ttft_ms"] == pytest.approx(940)  # 400 + 0.9 * 600
    assert found["std_ttft_ms"] == pytest.approx(300)
    assert found["mean_tpot_ms"] == pytest.approx((300 + 1000) / 2)  # 0.6 s over 2 tokens, 1 s over 1
    assert found["mean_itl_ms"] == pytest.approx(1600 / 3)
    assert found["max_itl_ms"] == pytest.approx(1000)


@pytest.mark.parametrize(
    ("tokens", "ttft", "shows_ttft"), [(0, None, False), (1, 0.5, True)], ids=["no token", "one token"]
)
def test_short_answers_have_no_time_per_token(tokens: int, ttft: float | None, shows_ttft: bool) -> None:
    found = serving_metrics([outcome(0.0, 0.5, ttft=ttft, output_len=tokens, cached_tokens=0)], 1.0)
    assert found["mean_tpot_ms"] is None
    assert found["mean_itl_ms"] is None
    assert found["max_itl_ms"] is None
    assert (found["mean_ttft_ms"] is not None) == shows_ttft
    assert found["total_output_tokens"] == tokens
    assert found["output_throughput"] == tokens


def test_failures_are_counted_and_in_nothing_else() -> None:
    failed = outcome(0.0, 9.0, error="500: no", prompt_len=1000, ttft=9.0, output_len=7, itl=[5.0])
    found = serving_metrics([*TWO, failed], 2.5)
    without = serving_metrics(TWO, 2.5)
    assert found.pop("failed") == 1
    without.pop("failed")
    assert found == without


@pytest.mark.parametrize("outcomes", [[], [outcome(0.0, 1.0, error="no")]], ids=["none", "all failed"])
def test_nothing_measured_is_no_number(outcomes: list[Outcome]) -> None:
    found = serving_metrics(outcomes, 0.0)
    assert found["completed"] == 0
    assert found["failed"] == len(outcomes)
    assert found["request_throughput"] is None
    assert found["cache_hit_rate"] is None
    assert found["p99_e2e_latency_ms"] is None
    assert (found["max_output_tokens_per_s"], found["max_concurrent_requests"]) == (0, 0)


def test_a_server_silent_about_its_cache_has_no_hit_rate() -> None:
    found = serving_metrics([TWO[0], outcome(0.0, 1.0, cached_tokens=None)], 1.0)
    assert (found["total_cached_tokens"], found["cache_hit_rate"]) == (None, None)


def test_an_empty_prompt_divides_nothing_by_zero() -> None:
    assert serving_metrics([outcome(0.0, 1.0, prompt_len=0, cached_tokens=0)], 1.0)["cache_hit_rate"] is None


def test_peaks() -> None:
    touching = [outcome(0.0, 1.0), outcome(1.0, 1.0), outcome(1.5, 0.2)]
    assert peak_concurrency(touching) == 2  # the first ends as the second starts
    tokens = [outcome(10.0, 3.0, ttft=0.5, itl=[0.2, 0.2, 1.0]), outcome(10.0, 2.0, ttft=1.95)]
    assert peak_tokens_per_second(tokens) == 3  # at 0.5, 0.7, 0.9; then 1.9 and 1.95


def test_a_piece_of_several_tokens_is_as_many_equal_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 2.0, 5.0, 6.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    seen = Outcome(1, start=0.0)
    seen.note_piece(4)
    seen.note_piece(1)
    seen.note_piece(3)
    seen.note_end()
    assert (seen.ttft, seen.itl, seen.latency) == (1.0, [1.0, 1.0, 1.0, 1.0], 6.0)
    assert seen.token_times() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_an_answer_that_came_whole_has_its_first_token_at_its_end() -> None:
    whole = outcome(0.0, 2.0, output_len=5)
    whole.settle()
    assert whole.ttft == 2.0
    empty = outcome(0.0, 2.0)
    empty.settle()
    assert empty.ttft is None


def test_the_printed_lines_are_those_of_sglang() -> None:
    context = {"backend": "sglang", "request_rate": "inf", "max_concurrency": "not set", "cache_state": "cold"}
    lines = list(result_lines({**serving_metrics(TWO, 2.5), **context, "peak_memory_mb": None}))
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    assert "----------------End-to-End Latency----------------" in lines
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "---------------Inter-Token Latency----------------" in lines
    assert "Backend:                                 sglang" in lines
    assert "Request throughput (req/s):              0.80" in lines
    assert "Mean TTFT (ms):                          700.00" in lines
    assert "Peak memory (MB):                        n/a" in lines
