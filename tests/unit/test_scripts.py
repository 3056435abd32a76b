"""Scripts and examples of which a package is missing say so in one sentence; help comes before any work."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _run(path: str, *flags: str, without: str | None = None) -> subprocess.CompletedProcess[str]:
    """As `python PATH FLAGS`, in an environment in which one package is not installed."""
    code = (
        f"import sys, runpy; sys.modules.update({dict.fromkeys([without] if without else [])!r}); "
        f"sys.path[0] = {str(Path(path).parent)!r}; sys.argv[:] = {[path, *flags]!r}; "
        f"runpy.run_path({path!r}, run_name='__main__')"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("path", "package", "told"),
    [
        ("scripts/schema_suites.py", "jsonschema", "This script needs jsonschema. Run: pip install jsonschema\n"),
        (
            "scripts/bench_llama_cpp.py",
            "llama_cpp",
            "This needs llama-cpp-python. Run: pip install llama-cpp-python\n",
        ),
        ("examples/dspy_program.py", "dspy", "This example needs dspy. Run: pip install dspy\n"),
    ],
)
def test_a_missing_package_is_one_sentence(path: str, package: str, told: str) -> None:
    done = _run(path, without=package)
    assert (done.returncode, done.stderr) == (1, told)


def test_help_of_the_cache_tables_computes_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "cache_table.py"))
    monkeypatch.setitem(script["main"].__globals__, "tables", lambda: pytest.fail("computed"))
    monkeypatch.setattr(sys, "argv", ["cache_table.py", "--help"])
    with pytest.raises(SystemExit):
        script["main"]()
    assert "--write" in capsys.readouterr().out
