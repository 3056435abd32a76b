"""Every example runs on the default model, and prints what it says it prints."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmprog import Runtime

pytestmark = pytest.mark.model
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = [
    "compile_mode",
    "quickstart",
    "fork_join",
    "json_extraction",
    "few_shot_classification",
    "multi_turn_chat",
    "tree_of_thought",
    "react_tools",
    "streaming",
    "helm_scenario",
    "dspy_program",
]
PRINTS = {
    "compile_mode": ["moved:", "before 'Text: {text}", "?", "came from the cache"],
    "quickstart": ["France: Paris, in Europe", "came from the cache"],
    "fork_join": ["Advice:", "from the cache"],
    "json_extraction": ["Person(name=", "came from the cache"],
    "few_shot_classification": ["positive", "negative", "of 4 right"],
    "multi_turn_chat": ["system:", "user:", "assistant:"],
    "tree_of_thought": ["Answer:"],
    "react_tools": ["Thought:", "Calculate:", "Answer:"],
    "streaming": ["Title:"],
    "helm_scenario": ["exact match", "robust to all forms", "came from the cache"],
    "dspy_program": ["The match ended", "Heat the oil"],
}


@pytest.fixture(scope="module")
def backend() -> Iterator[Runtime]:
    with Runtime("smollm2-135m", dtype="float32", max_total_tokens=16384) as runtime:
        yield runtime


@pytest.mark.parametrize("name", PROGRAMS)
def test_example(name: str, backend: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "dspy_program":
        pytest.importorskip("dspy", reason="dspy is not installed")
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](backend)
    printed = capsys.readouterr().out
    assert all(words in printed for words in PRINTS[name]), printed


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py") if "main(backend)" in path.read_text()} == set(PROGRAMS)


def test_the_demo_shows_real_reuse(capsys: pytest.CaptureFixture[str]) -> None:
    from lmprog.demo import run_demo

    assert run_demo("smollm2-135m", dtype="float32") == 0
    printed = capsys.readouterr().out
    on, off = (line.split() for line in printed.splitlines() if line.strip().startswith("cache o"))
    assert on[2] == off[2], "the same prompts"
    assert int(on[3].replace(",", "")) * 3 < int(off[3].replace(",", "")), "at least three times fewer tokens computed"
    assert "forced" in printed
