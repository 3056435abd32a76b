"""The serving benchmark from end to end: three APIs over loopback and the runtime itself, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmprog_runtime.bench import serving
from lmprog_runtime.bench.conversation import Conversation, Turn
from lmprog_runtime.bench.load import Load, run_load
from lmprog_runtime.bench.targets import SERVERS, InProcess, Target, server_class
from lmprog_runtime.errors import RequestRefused
from tests.support.tiny_engine import TOKENIZER
from tests.support.tiny_server import Served, tiny_runtime
from tests.support.tiny_server import serving as tiny_serving

PROMPT = TOKENIZER.encode("What is a tree?")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with tiny_serving() as running:
        yield running


def target(served: Served, backend: str) -> Target:
    if backend == "in-process":
        return InProcess(served.runtime)
    made = server_class(backend)(served.url, "tiny", TOKENIZER)
    made.extra = {}
    return made


@pytest.mark.parametrize("backend", ["in-process", "openai", "sglang", "openai-chat"])
def test_tokens_are_counted_as_the_server_counts_them(served: Served, backend: str) -> None:
    to = target(served, backend)
    assert to.flush_cache()
    first, second = (to.send(PROMPT, 9) for _ in range(2))
    assert first.error == second.error == ""
    assert first.output_len == second.output_len == 9
    assert (first.cached_tokens, second.cached_tokens) == (0, second.prompt_len - 1)
    if backend != "openai-chat":  # where the template comes on top
        assert first.prompt_len == len(PROMPT)
    assert first.ttft is not None
    assert first.ttft <= first.latency
    assert len(first.itl) <= 8
    assert first.ttft + sum(first.itl) == pytest.approx(first.latency, rel=0.9)


def test_a_refused_request_is_a_failure_with_the_servers_words(served: Served) -> None:
    outcome = target(served, "openai").send([999_999], 4)
    assert outcome.error.startswith("400")
    assert "999999" in outcome.error
    assert target(served, "in-process").send([999_999], 4).error


def test_an_unreachable_server_is_a_failure() -> None:
    outcome = server_class("openai")("http://127.0.0.1:9", "tiny", TOKENIZER).send(PROMPT, 4)
    assert "Connection" in outcome.error
    assert not outcome.is_success


def test_turns_go_on_from_the_answers_before(served: Served) -> None:
    to = target(served, "in-process")
    to.flush_cache()
    conversation = Conversation((Turn(tuple(PROMPT), 5), Turn(tuple(PROMPT), 5)))
    outcomes, duration = run_load(to, [conversation], Load(), encode=TOKENIZER.encode, quiet=True)
    assert [outcome.prompt_len for outcome in outcomes] == [len(PROMPT), 2 * len(PROMPT) + 5]
    assert outcomes[1].cached_tokens == len(PROMPT) + 4  # all but the last token, whose KV was never computed
    assert duration >= sum(outcome.latency for outcome in outcomes)


def test_after_a_failed_turn_the_others_fail_too(served: Served) -> None:
    conversation = Conversation((Turn((999_999,), 5), Turn(tuple(PROMPT), 5)))
    outcomes, _ = run_load(target(served, "in-process"), [conversation], Load(), encode=TOKENIZER.encode, quiet=True)
    assert "earlier turn" in outcomes[1].error


def test_no_more_requests_under_way_than_allowed(served: Served) -> None:
    from lmprog_runtime.bench.metrics import peak_concurrency

    conversations = [Conversation.single([*PROMPT, 70 + n], 6) for n in range(12)]
    load = Load(max_concurrency=3)
    outcomes, _ = run_load(target(served, "sglang"), conversations, load, encode=TOKENIZER.encode, quiet=True)
    assert 1 <= peak_concurrency(outcomes) <= 3
    assert all(outcome.is_success for outcome in outcomes)


def run_command(served: Served, monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr(serving, "resolve_model", lambda _: None)
    monkeypatch.setattr(serving, "load_tokenizer", lambda _: TOKENIZER)
    common = ["--base-url", served.url, "--model", "tiny", "--disable-tqdm", "--dataset-name"]
    groups = ["--gsp-num-groups", "2", "--gsp-prompts-per-group", "3", "--scale", "0.02"]
    return serving.main([*common, "generated-shared-prefix", *groups, *flags])


@pytest.mark.parametrize("backend", ["openai", "sglang"])
def test_the_command_prints_and_writes(
    served: Served, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results" / "a.jsonl"
    for _ in range(2):
        assert run_command(served, monkeypatch, "--backend", backend, "--output-file", str(path)) == 0
    results: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(results) == 2
    assert results[0]["completed"] == 6
    assert results[0]["total_input_tokens"] == 6 * (40 + 2)
    assert results[0]["total_output_tokens"] == 6 * 5
    assert results[0]["total_cached_tokens"] >= 4 * 40
    assert results[0]["cache_state"] == "cold"
    assert results[0]["environment"]["cores"] >= 1
    shown = capsys.readouterr().out
    assert "Successful requests:                     6" in shown
    assert "Cache at the start:                      cold" in shown
    assert "tiny in float32" in shown


def test_two_settings_are_compared(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    flags = ["--rounds", "2", "--output-file", str(path), "--compare", "--max-concurrency 1", "--max-concurrency 4"]
    assert run_command(served, monkeypatch, *flags) == 0
    settings = [json.loads(line)["setting"] for line in path.read_text().splitlines()]
    assert settings == ["--max-concurrency 1"] * 2 + ["--max-concurrency 4"] * 2
    assert "ratios" in capsys.readouterr().out


def test_a_runtime_in_this_process_with_and_without_its_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(config: Any) -> Any:
        return tiny_runtime(disable_radix_cache=config.disable_radix_cache)

    monkeypatch.setattr(serving.LocalRuntime, "from_config", start)
    path = tmp_path / "a.jsonl"
    flags = ["--dataset-name", "generated-shared-prefix", "--gsp-num-groups", "2", "--gsp-prompts-per-group", "3"]
    more = ["--scale", "0.02", "--disable-tqdm", "--output-file", str(path), "--rounds", "1", "--output-details"]
    assert serving.main([*flags, *more, "--compare", "", "--disable-radix-cache"]) == 0
    cached, uncached = (json.loads(line) for line in path.read_text().splitlines())
    assert cached["total_cached_tokens"] >= 4 * 40
    assert uncached["total_cached_tokens"] == 0
    assert uncached["disable_radix_cache"] is True
    assert cached["input_lens"] == [42] * 6
    assert cached["peak_memory_mb"] > 0


def test_a_server_that_cannot_serve_is_one_sentence(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestRefused, match="warm-up request failed"):
        run_command(served, monkeypatch, "--extra-request-body", '{"nonsense": 1}')


def test_backends_are_known_by_name(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestRefused, match=", ".join(list(SERVERS)[:2])):
        run_command(served, monkeypatch, "--backend", "nosuch")
    with pytest.raises(RequestRefused, match="needs --base-url"):
        serving.main(["--backend", "openai"])
