"""The programs of the benchmark and their ablations, on a tiny model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmprog.backends.local import Runtime
from lmprog.bench import agents, command, questions
from lmprog.bench.data import FIELDS, Source, parse_files, read_items
from lmprog.bench.suite import SHOTS, Case, named, suite
from lmprog.errors import InvalidArgument
from lmprog_runtime.bench import recorder
from tests.support.tiny_server import tiny_runtime


@pytest.fixture(scope="module")
def runtimes() -> Iterator[dict[str, recorder.RecordedRuntime]]:
    made = {name: recorder.RecordedRuntime(tiny_runtime(**changes)) for name, changes in recorder.CHANGES.items()}
    yield made
    for each in made.values():
        each.runtime.close()


CASES = suite(Source(1, {}), 2, shots=2)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_program_does_equal_work_in_every_setting(case: Case, runtimes: Any) -> None:
    found = {name: command.run(case, name, runtimes, at_a_time=2) for name in command.settings_of(case)}
    full, uncached = found[command.FULL], found[command.NO_CACHE]
    assert full["hit_rate"] == pytest.approx(full["best_hit_rate"], abs=0.02)
    assert uncached["hit_rate"] == 0
    assert uncached["computed_tokens"] > full["computed_tokens"]
    for numbers in found.values():
        assert numbers["programs_per_second"] == pytest.approx(2 / numbers["seconds"])
        assert numbers["requests"] == full["requests"]
        if not case.forks:  # sampled branches have other seeds when they run alone, and so other texts
            assert numbers["completion_tokens"] == full["completion_tokens"]
            assert numbers["prompt_tokens"] == full["prompt_tokens"]


def test_forks_run_side_by_side_or_one_after_the_other(runtimes: Any) -> None:
    """The last branch's request is made before the first has ended, or after."""
    kept = runtimes[command.FULL]._engine
    case = next(case for case in CASES if case.name.startswith("judge"))
    for setting, most in ((command.FULL, 1), (command.NO_FORKS, len(questions.DIMENSIONS))):
        unfinished: list[int] = []
        submit = kept._engine.submit_group

        def watched(requests: Any, sinks: Any, seen: Any = unfinished, go: Any = submit) -> Any:
            seen.append(sum(not request.output for request in kept.kept[:-1]))
            return go(requests, sinks)

        kept._engine.submit_group = watched
        command.run(case._replace(items=case.items[:1]), setting, runtimes, at_a_time=1)
        kept._engine.submit_group = submit
        assert sum(count == 0 for count in unfinished[: len(questions.DIMENSIONS)]) == most


def test_jump_forward_saves_sampling_and_changes_no_answer(runtimes: Any) -> None:
    case = next(case for case in CASES if case.constrained)
    texts, forced = {}, {}
    for name in (command.FULL, command.NO_JUMP_FORWARD):
        runtimes[name].restart()
        backend = Runtime.over(runtimes[name].runtime)
        runs = case.program.run_batch(case.items, backend=backend)
        texts[name] = [run.text() for run in runs]
        forced[name] = sum(run.usage.forced_tokens for run in runs)
    assert texts[command.FULL] == texts[command.NO_JUMP_FORWARD]
    assert forced[command.FULL] > 0 == forced[command.NO_JUMP_FORWARD]


def test_the_best_hit_rate_counts_each_edge_once(runtimes: Any) -> None:
    """One program after the other, worked out by hand: a shared system prompt, then turns that go on from answers."""
    recorded = runtimes[command.FULL]
    recorded.restart()
    backend = Runtime.over(recorded.runtime)
    talk = {"opening": "Be kind.", "questions": ["a?", "b?"], "answer_tokens": 4}
    first = agents.chat.run(**talk, backend=backend)
    prompts = first.usage.prompt_tokens
    first.sync()
    kept = recorded._engine.kept
    lengths = [len(request.prompt) for request in kept]
    assert prompts == sum(lengths)
    counts = recorded.counts()
    # the second prompt starts with the first and its answer, whose last token was never computed
    assert counts["best_hit_rate"] == pytest.approx((lengths[0] + 3) / prompts)
    assert counts["hit_rate"] == counts["best_hit_rate"]


def test_self_consistency_takes_the_end_of_most_answers() -> None:
    from lmprog import ScriptedBackend

    answers = ["so 3", "it is 4", "so 4", "7", "no: 4"]
    backend = ScriptedBackend(answers)
    item = {"examples": [], "item": {"question": "2+2?"}, "parallel": False}
    assert questions.self_consistency.run(**item, backend=backend).ret_value == "4"
    silent = ScriptedBackend([""] * 5)
    assert questions.self_consistency.run(**item, backend=silent).ret_value == ""


def test_items_repeat_by_seed_and_have_the_fields_of_files() -> None:
    for kind, fields in FIELDS.items():
        first, again, other = (Source(seed, {}).items(kind, 3) for seed in (1, 1, 2))
        assert first == again != other
        assert all(set(item) == set(fields) for item in first)


def test_files_replace_what_is_made(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    lines = [json.dumps({"question": f"q{number}", "answer": "a"}) for number in range(3)]
    path.write_text("\n".join(lines) + "\n")
    source = Source(1, parse_files([f"gsm8k={path}"]))
    assert [item["question"] for item in source.items("gsm8k", 4)] == ["q0", "q1", "q2", "q0"]
    case = next(case for case in suite(source, 1) if case.name.startswith("GSM8K"))
    assert case.items[0]["item"]["question"] == f"q{SHOTS % 3}"


def test_mistakes_in_files_and_names_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "g.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n{"question": "q"}\n')
    with pytest.raises(InvalidArgument, match="line 2 has no answer"):
        read_items("gsm8k", path)
    path.write_text("\n")
    with pytest.raises(InvalidArgument, match="no items"):
        read_items("gsm8k", path)
    with pytest.raises(InvalidArgument, match="the kinds are mmlu"):
        parse_files(["poems=x"])
    with pytest.raises(InvalidArgument, match="there are MMLU"):
        named(CASES, ["chess"])


def test_the_command_prints_and_writes(
    runtimes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def ready(**settings: Any) -> Iterator[Any]:
        assert settings["max_total_tokens"] == 4096
        yield runtimes

    monkeypatch.setattr(recorder, "ablations", ready)
    path = tmp_path / "p.jsonl"
    flags = ["--count", "1", "--shots", "1", "--rounds", "2", "--max-total-tokens", "4096", "--output-file", str(path)]
    assert command.main([*flags, "--programs", "MMLU-style, few-shot", "RAG pipeline"]) == 0
    result = json.loads(path.read_text())
    assert list(result["programs"]["RAG pipeline"]) == ["full", "no cache", "no forks"]
    assert result["model"]["model"] == "tiny"
    assert result["data"] == []
    shown, told = capsys.readouterr()
    assert "round 2, RAG pipeline: no cache " in told
    lines = shown.splitlines()
    assert len(lines) == 1 + 2 + 3 + 1
    assert "1.00x" in lines[1]


def test_medians_are_taken_number_by_number() -> None:
    assert command.median([{"a": 1.0, "b": 9.0}, {"a": 5.0, "b": 2.0}, {"a": 3.0, "b": 4.0}]) == {"a": 3.0, "b": 4.0}


def test_settings_of_a_case() -> None:
    assert command.settings_of(Case("x", agents.chat, [])) == ["full", "no cache"]
    assert command.settings_of(Case("x", agents.rag, [], forks=True))[-1] == "no forks"
    assert isinstance(command.parser(), argparse.ArgumentParser)
