"""Each rule in docs/language.md names a test that exists; its program runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import lmprog
from lmprog import ScriptedBackend

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "language.md").read_text()


def test_every_rule_has_its_test() -> None:
    rows = [line for line in PAGE.split("## Rules")[1].split("##")[0].splitlines() if line.startswith("| ")][1:]
    named = [re.search(r"\| `(test_\w+)` \|$", row) for row in rows]
    assert all(named), "a row names no test"
    sources = "".join(p.read_text() for p in (ROOT / "tests").glob("*/test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(rows) > 60
    assert {match[1] for match in named if match} <= defined


def test_the_program_on_the_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    backend = ScriptedBackend(lambda call: '{"score":4, "reason":"good"}' if call.constraint else "fine")
    monkeypatch.setattr(lmprog, "Runtime", lambda model: backend)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code[1], "page", "exec", dont_inherit=True), names)
    assert capsys.readouterr().out == "4\n"
    assert names["state"]["verdict"].reason == "good"
