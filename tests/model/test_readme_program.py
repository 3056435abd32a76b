"""The program of README.md, as it stands there, on the default model."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_the_program_of_the_readme_gives_a_whole_verdict(temperature: str, tmp_path: Path) -> None:
    """With temperature 1, at which its own text may run into the limit, as well."""
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    program = tmp_path / "program.py"
    program.write_text(code[1].replace("temperature=0", f"temperature={temperature}"))
    verdict = runpy.run_path(str(program))["result"]["verdict"]
    assert type(verdict).__name__ == "Verdict"
    assert isinstance(verdict.score, int)
    assert isinstance(verdict.reason, str)
