"""Each rule in docs/language.md names a test that exists; its program runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def test_the_program_on_the_page_runs() -> None:
    @dataclass
    class Verdict:
        score: int

    code = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert code is not None
    backend = ScriptedBackend(lambda call: '{"score":4}' if call.constraint else "fine")
    names: dict[str, Any] = {"Verdict": Verdict, "text": "An essay.", "backend": backend}
    exec(code[1], names)
    assert names["state"]["verdict"].score == 4
