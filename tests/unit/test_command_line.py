"""The command line: mistakes are one sentence and status 1; batches go on after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lmprog
from lmprog import cli, run_command

PROGRAM = """
from lmprog import function, gen

@function
def answer(s, question):
    s += question + gen("a", max_tokens=4)

def helper():
    pass
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> lmprog.ScriptedBackend:
    backend = lmprog.ScriptedBackend(lambda prompt: f"re {prompt}")
    monkeypatch.setattr(run_command, "_backend", lambda options: backend)
    return backend


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nothing.py:x"], "not FILE.py or FILE.py:NAME"),
        (["run", "nothing.py"], "not FILE.py or FILE.py:NAME"),
        (["run", "PROGRAM:nothing"], "it has answer"),
        (["run", "PROGRAM:answer", "--input", "x"], "belong together"),
        (["pull", "no-such-model-anywhere"], "no-such-model-anywhere"),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], words: str, program: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cli.main([argument.replace("PROGRAM", program) for argument in arguments]) == 1
    printed = capsys.readouterr().err
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


def test_a_line_that_is_no_object_is_named(program: str, scripted: lmprog.ScriptedBackend, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"question": "a"}\n[1]\n')
    with pytest.raises(lmprog.InvalidArgument, match="line 2"):
        run_command.main(
            ["PROGRAM:answer".replace("PROGRAM", program), "--input", str(source), "--output", str(tmp_path / "o")]
        )
