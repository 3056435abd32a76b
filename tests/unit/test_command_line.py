"""The command line: mistakes are one sentence and status 1; batches go on after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import cli, run_command
from lmprog.backends import local

PROGRAM = """
from lmprog import function, gen

@function
def answer(s, question):
    s += question + gen("a", max_tokens=4)

def helper():
    pass
"""

TASKS = """
from dataclasses import replace
from lmprog.evaluation import Generation

chosen = Generation(
    name="chosen", data=[{"q": "a"}], question="{q}", answer="x", target=lambda item: "x"
)
other = replace(chosen, name="other")
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "tasks.py"
    path.write_text(TASKS)
    return str(path)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> lmprog.ScriptedBackend:
    backend = lmprog.ScriptedBackend(lambda prompt: f"re {prompt}")
    monkeypatch.setattr(run_command, "backend_of", lambda options: backend)
    return backend


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing.py:x"], "not FILE.py or FILE.py:NAME"),
        (["run", "nothing.py"], "not FILE.py or FILE.py:NAME"),
        (["run", "PROGRAM:nothing"], "it has answer"),
        (["run", "PROGRAM:answer", "--input", "x"], "belong together"),
        (["eval", "helaswag"], "nor one of hellaswag, gsm8k"),
        (["eval", "hellaswag"], "say where the items are"),
        (["eval", "nothing.py:x"], "not FILE.py or FILE.py:NAME"),
        (["eval", "TASK:nothing"], "TASK has no task nothing; it has chosen, other"),
        (["eval", "TASK"], "TASK has several tasks; say which; it has chosen, other"),
        (["eval", "PROGRAM"], "has no task; it has none"),
        (["pull", "no-such-model-anywhere"], "no-such-model-anywhere"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str],
    words: str,
    program: str,
    task: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main([argument.replace("PROGRAM", program).replace("TASK", task) for argument in arguments]) == 1
    printed = capsys.readouterr().err
    words = words.replace("TASK", task)
    assert printed.startswith("lmprog: ")
    assert words in printed
    assert "Traceback" not in printed


def test_one_run(program: str, scripted: lmprog.ScriptedBackend, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", f"{program}:answer", "--arg", "question=why"]) == 0
    assert "why" in capsys.readouterr().out


def test_the_only_program_of_a_file_needs_no_name(
    program: str, scripted: lmprog.ScriptedBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", program, "--arg", "question=why"]) == 0
    assert "why" in capsys.readouterr().out
    Path(program).write_text(PROGRAM + PROGRAM.replace("def answer", "def other"))
    assert cli.main(["run", program, "--arg", "question=why"]) == 1
    assert "several @functions; say which; it has answer, other" in capsys.readouterr().err


def test_a_batch_is_written_and_a_second_call_runs_nothing(
    program: str, scripted: lmprog.ScriptedBackend, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"question": f"q{number}"}) + "\n" for number in range(5)))
    command = ["run", f"{program}:answer", "--input", str(source), "--output", str(target)]
    assert cli.main(command) == 0
    calls = len(scripted.calls)
    assert calls == 5
    assert len(target.read_text().splitlines()) == 5
    assert cli.main(command) == 0
    assert len(scripted.calls) == calls


DTYPE, THREADS, NO_CACHE, CACHE_DIR = (
    ["--dtype", "float32"],
    ["--threads", "2"],
    ["--disable-radix-cache"],
    ["--cache-dir", "x"],
)
ELSEWHERE = [
    *(("run", "--url", setting) for setting in (DTYPE, CACHE_DIR)),
    *(("eval", "--url", setting) for setting in (DTYPE, THREADS, NO_CACHE)),
    *(("eval", "--api", setting) for setting in (DTYPE, THREADS, NO_CACHE)),
]


@pytest.mark.parametrize(("command", "elsewhere", "setting"), ELSEWHERE)
def test_settings_of_a_model_here_are_refused_for_one_elsewhere(
    command: str, elsewhere: str, setting: list[str], program: str, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    what = {"run": program, "eval": f"{task}:chosen"}[command]
    assert cli.main([command, what, elsewhere, "http://127.0.0.1:9", *setting]) == 1
    wanted = f"lmprog: {setting[0]} would be settings of a model here; leave them out with {elsewhere}."
    assert wanted in capsys.readouterr().err


def test_a_server_and_an_api_are_not_given_together(task: str) -> None:
    with pytest.raises(SystemExit):
        cli.main(["eval", f"{task}:chosen", "--url", "http://127.0.0.1:9", "--api", "http://127.0.0.1:9"])


def test_settings_of_a_model_here_reach_it(task: str, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def runtime(model: str, **settings: Any) -> lmprog.ScriptedBackend:
        seen.append({"model": model, **settings})
        return lmprog.ScriptedBackend("x")

    monkeypatch.setattr(local, "Runtime", runtime)
    shared = ["--quiet", "--model", "m"]
    assert cli.main(["eval", f"{task}:chosen", *shared]) == 0
    assert cli.main(["eval", f"{task}:chosen", *shared, *DTYPE, *THREADS, *NO_CACHE]) == 0
    assert cli.main(["run", program, "--arg", "question=q", *DTYPE, *CACHE_DIR]) == 0
    assert seen == [
        {"model": "m"},
        {"model": "m", "dtype": "float32", "threads": 2, "disable_radix_cache": True},
        {"model": "smollm2-135m", "dtype": "float32", "cache_dir": "x"},
    ]


def test_a_line_that_is_no_object_is_named(program: str, scripted: lmprog.ScriptedBackend, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"question": "a"}\n[1]\n')
    with pytest.raises(lmprog.InvalidArgument, match="line 2"):
        run_command.main(
            ["PROGRAM:answer".replace("PROGRAM", program), "--input", str(source), "--output", str(tmp_path / "o")]
        )
