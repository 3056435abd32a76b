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
    named = set(re.findall(r"\| `(test_\w+)` \|", PAGE))
    sources = "".join(
        p.read_text() for folder in ("unit", "property") for p in (ROOT / "tests" / folder).glob("test_language_*.py")
    )
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(named) > 30
    assert named <= defined


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
