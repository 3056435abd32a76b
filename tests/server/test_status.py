"""Statistics, metrics, the tree, the native routes: what people watch."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmprog_runtime.server import launch, tracing
from lmprog_runtime.server.guard import Finished
from lmprog_runtime.server.metrics import Metrics
from lmprog_runtime.server.pace import busy_line, pace_between
from tests.support.tiny_server import ASCII_ONLY, Served, eventually, serving, tiny_runtime

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "deploy" / "grafana-dashboard.json"


def _families(server: Served) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}


def test_counters_tell_what_happened() -> None:
    with serving() as server:
        body: dict[str, Any] = {"model": "tiny", "prompt": "one hundred", "max_tokens": 5, "logit_bias": ASCII_ONLY}
        for _ in range(2):
            server.ok("/v1/completions", **body)
        server.ok("/v1/completions", **body, regex="[a-z]{3}")
        server.ok("/fork", text="a", suffixes=["b", "c"], sampling_params={"max_new_tokens": 1})
        assert server.metric("num_requests_total") == 4
        assert server.metric("request_success_total") == 5
        assert server.metric("prompt_tokens_total") == 37
        assert server.metric("cached_tokens_total") >= 20
        assert server.metric("prefix_cache_hits_total") >= 20
        assert server.metric("num_so_requests_total") == 1
        assert server.metric("num_forks_total") == 2
        assert server.metric("time_to_first_token_seconds_count") == 5
        assert server.metric("num_requests_running") == 0
        modes = {
            s.labels["mode"]: s.value
            for s in _families(server)["lmprog:realtime_tokens"].samples
            if s.name.endswith("total")
        }
        assert modes["prefill_compute"] + modes["prefill_cache"] == 37
        assert server.metric("grammar_compile_seconds_count") == 1
        assert server.metric("grammar_mask_seconds_count") == 3  # the end needs no sampling
        assert 0 < server.metric("grammar_mask_seconds_sum") < 10
        assert server.metric("request_lifetime_seconds_count") == 4
        server.refused("/v1/completions", **body, regex="[a")
        assert server.metric("refused_constraints_total") == 1
        assert server.metric("request_lifetime_seconds_count") == 5
        before = server.metric("prefix_cache_queries_total")
        assert server.metric("prefix_cache_queries_total") == before, "asking changes nothing"


def test_cached_tokens_by_tier(tmp_path: Path) -> None:
    """A prompt of 200 tokens found in the pool, and after the pool was emptied by others in the tier below."""
    long = "".join(chr(65 + i % 26) for i in range(200))
    runtime = tiny_runtime(slots=512, host_cache_bytes=64 * 2**20)
    with serving(runtime) as server:
        body = {"model": "tiny", "max_tokens": 1, "return_cached_tokens_details": True}
        for _ in range(2):
            usage = server.ok("/v1/completions", prompt=long, **body)["usage"]
        details = usage["prompt_tokens_details"]
        assert details == {"cached_tokens": 199, "cached_tokens_details": {"device": 199, "host": 0, "file": 0}}
        for letter in "xyz":
            server.ok("/v1/completions", prompt=letter * 400, model="tiny", max_tokens=1)
        details = server.ok("/v1/completions", prompt=long, **body)["usage"]["prompt_tokens_details"]
        tiers = details["cached_tokens_details"]
        assert tiers["host"] > 0
        assert sum(tiers.values()) == details["cached_tokens"]
        seen = {
            s.labels["tier"]: s.value
            for s in _families(server)["lmprog:cached_tokens_by_tier"].samples
            if s.name.endswith("total")
        }
        assert seen == {"device": 199 + tiers["device"], "host": tiers["host"], "file": 0}
        plain = server.ok("/v1/completions", prompt=long, model="tiny", max_tokens=1)["usage"]
        assert plain["prompt_tokens_details"].keys() == {"cached_tokens"}


def test_a_request_knows_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trace of a request is made from: its phases in order, within its lifetime."""
    seen: list[Finished] = []
    monkeypatch.setattr(tracing, "exporter", lambda *_: seen.append)
    with serving(otlp_endpoint="http://127.0.0.1:9") as server:
        body = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "logit_bias": ASCII_ONLY}
        server.ok("/v1/completions", **body)
        server.events("/v1/completions", **body)
    seen = [done for done in seen if done.path == "/v1/completions"]
    for done in seen:
        names, times = zip(*done.marks, strict=True)
        assert names == ("queued", "first step", "first token")
        assert list(times) == sorted(times)
        assert 0 <= times[0] <= times[-1] <= done.seconds
        assert done.usage["completion_tokens"] == 3
    assert len(seen) == 2


def test_labels_are_few(server: Served) -> None:
    server.ok("/v1/completions", model="tiny", prompt="a", max_tokens=1)
    for family in _families(server).values():
        for sample in family.samples:
            assert set(sample.labels) <= {"model_name", "finished_reason", "mode", "tier", "le"}, sample
            assert sample.labels["model_name"] == "tiny"


def test_the_dashboard_uses_metrics_that_exist(server: Served) -> None:
    names = {sample.name for family in _families(server).values() for sample in family.samples}
    board = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(expressions) >= 10
    new = (
        "grammar_compile",
        "grammar_mask",
        "request_lifetime",
        "cached_tokens_by_tier",
        "leased_tokens",
        "request_queue",
    )
    assert [name for name in new if not any(name in expression for expression in expressions)] == []
    for expression in expressions:
        used = re.findall(r"lmprog:\w+", expression)
        assert used, expression
        assert set(used) <= names, expression


# What the dashboards that SGLang and vLLM publish ask for, after the prefix; of vLLM the older and the newer names.
SGLANG_NAMES = {
    "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count",
    "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count",
    "num_running_reqs", "num_queue_reqs", "gen_throughput", "cache_hit_rate", "token_usage",
}  # fmt: skip
VLLM_NAMES = {
    "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count",
    "time_to_first_token_seconds_bucket", "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count",
    "time_per_output_token_seconds_bucket", "time_per_output_token_seconds_sum", "time_per_output_token_seconds_count",
    "inter_token_latency_seconds_bucket", "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count",
    "prompt_tokens_total", "generation_tokens_total", "request_success_total",
    "num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc", "kv_cache_usage_perc",
    "request_prompt_tokens_bucket", "request_generation_tokens_bucket", "request_queue_time_seconds_sum",
    "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum",
}  # fmt: skip


@pytest.mark.parametrize("names", [SGLANG_NAMES, VLLM_NAMES], ids=["sglang", "vllm"])
def test_published_dashboards_find_their_names(server: Served, names: set[str]) -> None:
    here = {sample.name.removeprefix("lmprog:") for family in _families(server).values() for sample in family.samples}
    assert names - here == set()


def test_each_name_of_a_thing_has_its_value() -> None:
    with serving() as server:
        body: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "logit_bias": ASCII_ONLY}
        server.ok("/v1/completions", prompt="abc", n=2, **body)
        server.ok("/fork", text="a", suffixes=["b", "c"], sampling_params={"max_new_tokens": 1})
        server.refused("/v1/completions", prompt="abc", regex="[a", **body)
        assert server.metric("request_max_num_generation_tokens_count") == 2, "one of each answered request"
        assert server.metric("request_max_num_generation_tokens_sum") == 5 + 1
        assert server.metric("time_per_output_token_seconds_count") == 2, "of those with several tokens"
        mean = server.metric("time_per_output_token_seconds_sum")
        assert mean == server.metric("inter_token_latency_seconds_sum") > 0
        usage = {name: server.metric(name) for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")}
        assert set(usage.values()) == {0.0}, "nothing runs"


def test_stats_and_infos(server: Served) -> None:
    server.http.post("/flush_cache")
    for _ in range(2):
        server.ok("/v1/completions", model="tiny", prompt="shared prefix", max_tokens=1)
    cache = server.http.get("/stats").json()["radix_cache"]
    assert cache["total_nodes"] >= 1
    assert cache["shared_prefix_count"] >= 1
    assert 0 < cache["cache_hit_rate"] < 1
    per_token = 4 * 2 * 2 * 16 * 4  # layers, K and V, heads, dimension, bytes
    assert cache["shared_kv_bytes"] % per_token == 0
    assert cache["shared_kv_bytes"] >= 12 * per_token
    assert server.http.get("/get_model_info").json()["context_length"] == 4096
    assert server.http.get("/get_server_info").json()["radix_cache"]
    assert server.http.get("/version").json()["version"]
    assert server.http.get("/tokenizer_info").json()["bos_token_ids"] == []
    assert server.http.get("/live").json() == {"status": "alive"}
    assert server.http.get("/v1/models/tiny").json()["id"] == "tiny"
    assert server.http.get("/v1/models/other").status_code == 404


def test_a_hit_is_explained_and_so_is_a_miss(server: Served) -> None:
    """I05."""
    server.http.post("/flush_cache")
    prompt = "a prompt to explain"
    assert server.ok("/cache/explain", text=prompt)["matched"] == 0
    server.ok("/v1/completions", model="tiny", prompt=prompt, max_tokens=1)
    assert server.ok("/cache/explain", text=prompt)["reason"] == "all cached"
    assert server.ok("/cache/explain", text=prompt[:10] + "X")["matched"] == 10
    salted = server.ok("/cache/explain", text=prompt, cache_salt="s")
    assert (salted["matched"], salted["reason"]) == (0, "other namespace")
    server.http.post("/flush_cache")
    assert server.ok("/cache/explain", text=prompt)["reason"] == "evicted"
    assert "one of" in server.refused("/cache/explain")


def test_the_tree(server: Served) -> None:
    server.http.post("/flush_cache")
    for tail in ("x", "y"):
        server.ok("/v1/completions", model="tiny", prompt="branching " + tail, max_tokens=1)
    tree = server.http.get("/cache/tree").json()
    (space,) = tree["namespaces"]
    first, *rest = space["nodes"]
    assert (first["parent"], first["length"], first["hits"]) == (None, 10, 1)
    assert [node["parent"] for node in rest if node["start"] == 10] == [first["id"]] * 2
    assert "text" not in first


# -- how fast it goes --------------------------------------------------------------------------------------------------


def _reading(**numbers: int) -> dict[str, Any]:
    cache = {"queried_tokens": 0, "hit_tokens": 0, "used_slots": 50, "total_slots": 100}
    base = {"running": 2, "waiting": 1, "computed_tokens": 0, "generated_tokens": 0}
    cache |= {name: value for name, value in numbers.items() if name in cache}
    return {**base, **{n: v for n, v in numbers.items() if n in base}, "radix_cache": cache}


def test_the_line_while_busy() -> None:
    before = _reading(queried_tokens=100, hit_tokens=100, computed_tokens=10)
    now = _reading(queried_tokens=200, hit_tokens=150, computed_tokens=60, generated_tokens=25)
    line = busy_line(now, pace_between(before, now, 5.0))
    assert line == "running 2, waiting 1, computed 10 tok/s, generated 5 tok/s, pool 50%, hit rate 50%"
    assert busy_line(now, pace_between(now, now, 5.0)).endswith("generated 0 tok/s, pool 50%, hit rate -")


def test_gauges_of_the_last_seconds() -> None:
    """Speed falls to zero when nothing is done; the hit rate stays, as nothing is looked up."""
    metrics = Metrics("tiny")
    before, now = _reading(), _reading(queried_tokens=8, hit_tokens=2, generated_tokens=30)
    for one, other, speed in ((before, now, b"10.0"), (now, now, b"0.0")):
        metrics.goes(pace_between(one, other, 3.0))
        lines = metrics.text().splitlines()
        assert b'lmprog:gen_throughput{model_name="tiny"} ' + speed in lines
        assert b'lmprog:cache_hit_rate{model_name="tiny"} 0.25' in lines


class _Readings:
    """Counts how often a server's statistics are read."""

    def __init__(self, server: Served) -> None:
        self.count, self._read = 0, server.state.statistics
        server.state.statistics = self  # type: ignore[assignment, method-assign]

    async def __call__(self) -> dict[str, Any]:
        numbers = await self._read()
        self.count += 1
        return numbers

    def wait(self, more: int) -> None:
        until = self.count + more
        eventually(lambda: self.count >= until, 30)


def test_a_busy_server_says_so_every_few_seconds_and_an_idle_one_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The seconds are made short; what is logged are the numbers of the work done between two readings."""
    pattern = re.compile(
        r"running \d+, waiting \d+, computed (\d+) tok/s, generated (\d+) tok/s, pool \d+%, hit rate (\d+%|-)"
    )

    def lines() -> list[tuple[str, ...]]:
        found = [pattern.fullmatch(record.getMessage()) for record in caplog.records if record.name == "lmprog.server"]
        return [line.groups() for line in found if line is not None]

    monkeypatch.setattr(launch, "BUSY_LOG_SECONDS", 0.02)
    with caplog.at_level(logging.INFO, logger="lmprog.server"), serving() as server:
        readings = _Readings(server)
        readings.wait(3)
        assert lines() == [], "nothing was asked yet"
        for _ in range(2):
            server.ok("/v1/completions", model="tiny", prompt="a prompt", max_tokens=50, logit_bias=ASCII_ONLY)
        server.comes_to_rest()
        readings.wait(3)
        told = lines()
        assert max(int(computed) for computed, _, _ in told) > 0
        assert max(int(generated) for _, generated, _ in told) > 0
        assert any(rate not in ("0%", "-") for _, _, rate in told), "the second prompt was found"
        assert server.metric("gen_throughput") == 0
        assert server.metric("cache_hit_rate") > 0
        readings.wait(5)
        assert lines() == told


# -- native routes -----------------------------------------------------------------------------------------------------


def test_generate_batches_and_samples(server: Served) -> None:
    params = {"max_new_tokens": 4, "temperature": 0, "logit_bias": ASCII_ONLY}
    one = server.ok("/generate", text="abc", sampling_params=params)
    many = server.ok("/generate", text=["abc", "de"], sampling_params={**params, "n": 2})
    assert [answer["text"] for answer in many[:2]] == [one["text"]] * 2
    assert len(many) == 4
    ids = server.ok("/generate", input_ids=server.ok("/tokenize", prompt="abc")["tokens"], sampling_params=params)
    assert ids["text"] == one["text"]
    assert (
        server.ok("/generate", input_ids=[[40, 41], [42]], sampling_params=params)[1]["meta_info"]["prompt_tokens"] == 1
    )
    events = server.events("/generate", text=["abc", "de"], sampling_params=params)
    streamed = "".join(event["delta"] for event in events[:-1] if event["index"] == 0 and "delta" in event)
    assert streamed == one["text"]


def test_generate_logprobs(server: Served) -> None:
    params = {"max_new_tokens": 3, "temperature": 0, "logit_bias": ASCII_ONLY}
    asked = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    meta = server.ok("/generate", text="abcd", sampling_params=params, **asked)["meta_info"]
    assert meta["input_token_logprobs"][0] == [None, 100, "a"]
    assert len(meta["input_token_logprobs"]) == 4
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 3
    assert all(len(top) == 2 for top in meta["output_top_logprobs"])


def test_select_is_one_step_and_exact(server: Served) -> None:
    text, choices = "The answer: ", ["yes", "yesterday", "no", "nobody"]
    together = server.ok("/select", text=text, choices=choices)["choices"]
    for choice, scored in zip(choices, together, strict=True):
        body = {"model": "tiny", "prompt": text + choice, "echo": True, "logprobs": 0, "max_tokens": 0}
        exact = server.ok("/v1/completions", **body)["choices"][0]["logprobs"]["token_logprobs"][len(text) :]
        assert scored["logprobs"][-len(exact) :] == pytest.approx(exact, abs=1e-4)
    steps = server.runtime.statistics()["steps"]
    server.ok("/select", text=text, choices=choices)
    assert server.runtime.statistics()["steps"] == steps + 1
    by_ids = server.ok("/select", text="abc", choice_ids=[[100], [101, 102]])["choices"]
    assert [choice["token_ids"] for choice in by_ids] == [[100], [101, 102]]


def test_fork_shares_its_prefix(server: Served) -> None:
    prefix = "a common beginning of all of them, "
    params = {"max_new_tokens": 3, "temperature": 0}
    branches = server.ok("/fork", text=prefix, suffixes=["one", "two", "three"], sampling_params=params)["branches"]
    alone = [
        server.ok("/generate", text=prefix + tail, sampling_params=params)["text"] for tail in ("one", "two", "three")
    ]
    assert [branch["text"] for branch in branches] == alone
    assert sum(branch["meta_info"]["cached_tokens"] for branch in branches) >= 2 * len(prefix)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("/generate", {}, "either text or input_ids"),
        ("/generate", {"text": "a", "input_ids": [5]}, "either text or input_ids"),
        ("/generate", {"text": ""}, "empty"),
        ("/generate", {"segments": [{"open": ["user"]}], "text": "a"}, "segments"),
        ("/generate", {"segments": [{}]}, "segment"),
        ("/generate", {"segments": [{"special": "<|nope|>"}]}, "no control token"),
        ("/generate", {"segments": [999999]}, "999999"),
        ("/generate", {"text": "a", "sampling_params": {"max_tokens": 3}}, "sampling_params.max_tokens"),
        ("/generate", {"text": "a", "return_logprob": True, "logprob_start_len": 7}, "prompt_logprobs_start"),
        ("/select", {"text": "a"}, "either choices"),
        ("/select", {"text": "a", "choices": []}, "choices"),
        ("/select", {"choices": [""]}, "empty"),
        ("/select", {"text": "a", "choice_ids": [[-1]]}, "-1"),
        ("/fork", {"text": "a", "suffixes": []}, "suffixes"),
        ("/fork", {"suffixes": ["a"], "sampling_params": {"n": 2}}, "n is for /generate"),
        ("/tokenize", {}, "either prompt or messages"),
        ("/detokenize", {"tokens": [-1]}, "-1"),
    ],
)  # fmt: skip
def test_native_mistakes(server: Served, path: str, fields: dict[str, Any], message: str) -> None:
    assert message in server.refused(path, **fields)


def test_a_field_of_another_api_is_told_what_it_is_called_here(server: Served) -> None:
    inside = server.refused("/generate", text="a", sampling_params={"max_tokens": 3})
    assert inside == "This route has no field 'sampling_params.max_tokens'; did you mean 'max_new_tokens'?"
    assert server.refused("/fork", text="a", suffixes=["b"], max_new_tokens=3).endswith(
        "'sampling_params.max_new_tokens'?"
    )
    assert server.refused("/v1/completions", prompt="a", model="tiny", max_new_tokens=3).endswith("mean 'max_tokens'?")
    assert server.refused("/v1/completions", prompt="a", model="tiny", messages=[]).endswith(
        "'messages'; leave it out."
    )
