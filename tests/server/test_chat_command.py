"""`lmprog chat`, with what a person types on stdin, against a server."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmprog import chat_command
from tests.support.tiny_server import Served

ROOT = Path(__file__).parents[2]
FLAGS = ["--max-tokens", "6", "--temperature", "0", "--repetition-penalty", "1", "--system", "Be brief."]


def _turns(
    server: Served, typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What the chat prints: an answer after each prompt sign."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert chat_command.main(["--url", server.url, *FLAGS]) == 0
    out, err = capsys.readouterr()
    assert "ends the chat" in err
    return out.split("> ")[1:]


def _asked(server: Served, *texts: str) -> str:
    """The answer to a conversation, over the API."""
    roles = ["system", *(("user", "assistant")[at % 2] for at in range(len(texts)))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, ("Be brief.", *texts), strict=True)]
    body = {"model": "tiny", "messages": messages, "max_tokens": 6, "temperature": 0}
    text: str = server.ok("/v1/chat/completions", **body)["choices"][0]["message"]["content"]
    return text


def test_a_conversation_remembers_and_a_new_one_forgets(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _, again, _ = _turns(server, "hello\nand then\n/new\nhello\n\n", monkeypatch, capsys)
    answer = _asked(server, "hello")
    assert first == again == f"{answer}\n"
    assert second == f"{_asked(server, 'hello', answer, 'and then')}\n"


def test_the_end_of_input_ends_it(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _turns(server, "", monkeypatch, capsys) == ["\n"]
    assert len(_turns(server, "hello", monkeypatch, capsys)) == 2


def test_the_penalty_for_repetition_is_sent_and_is_in_the_help(
    server: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    chat_command.main(["--url", server.url, *FLAGS, "--repetition-penalty", "1.9"])
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 6, "temperature": 0, "repetition_penalty": 1.9}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    answer = server.ok("/v1/chat/completions", messages=messages, **body)["choices"][0]["message"]["content"]
    assert capsys.readouterr().out.startswith(f"> {answer}\n")
    with pytest.raises(SystemExit):
        chat_command.main(["--help"])
    assert "(default: 1.1)" in capsys.readouterr().out


def test_as_a_process(server: Served) -> None:
    code = "import sys; from lmprog.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    command = [sys.executable, "-c", code, "chat", "--url", server.url, *FLAGS]
    done = subprocess.run(command, input="hello\n", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"> {_asked(server, 'hello')}\n> \n"
    command[command.index(server.url)] = "http://127.0.0.1:9"
    done = subprocess.run(command, input="hello\n", env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
