"""Public names, light import, and the types that a checker sees."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lmprog

ROOT = Path(__file__).parents[2]


def test_exported_names() -> None:
    """Everything public is in `__all__`, sorted, and there."""
    assert sorted(lmprog.__all__) == lmprog.__all__
    own = {n for n, v in vars(lmprog).items() if not n.startswith("_") and not isinstance(v, ModuleType)}
    own -= {"TYPE_CHECKING", "Any", "annotations"}
    assert own <= set(lmprog.__all__)
    assert set(lmprog.__all__) - own <= set(lmprog._LAZY)
    assert set(lmprog.__all__) <= set(dir(lmprog))


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="module 'lmprog' has no attribute 'generate'"):
        _ = lmprog.generate
    with pytest.raises(AttributeError, match="did you mean 'Runtime'"):
        _ = lmprog.Runtme


def test_import_is_quick_and_loads_no_library() -> None:
    code = (
        "import sys, time; start = time.process_time(); import lmprog; spent = time.process_time() - start;"
        "heavy = {'torch', 'transformers', 'numpy', 'requests', 'asyncio', 'tqdm', 'pydantic'} & set(sys.modules);"
        "print(spent < 0.3, sorted(heavy))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "True []"


SNIPPET = """
from typing import Any
from typing_extensions import assert_type
from lmprog import Program, Run, State, function, gen

@function
def judge(s: State, essay: str, *, style: int = 3) -> float:
    s += essay + gen("x")
    for branch in s.fork(2):
        branch += gen("y")
    return 0.5

@function(temperature=0.5)
async def chat(s: State, word: str) -> bytes:
    await s
    assert_type(await s.call(chat, word="x"), bytes)
    assert_type(s.call(judge, "x"), float)
    return b""

class Agent:
    @function
    def step(self, s: State, n: int) -> str:
        return ""

async def main() -> None:
    assert_type(judge("text", style=4).ret_value, float)
    assert_type((await chat("text")).ret_value, bytes)
    assert_type(Agent().step(5).ret_value, str)
    assert_type(judge.run(essay="x", backend=None).ret_value, float)
    assert_type(judge.with_options(temperature=0)("x").ret_value, float)
    assert_type(judge.bind(style=2)("x").ret_value, float)
    assert_type((await chat.with_options(seed=1)(word="x")).ret_value, bytes)
    assert_type((await chat.bind(word="x")()).ret_value, bytes)
    judge(5)                # error: arg-type
    judge("x", stile=4)     # error: call-arg
    Agent().step("five")    # error: arg-type
    gen("x", temprature=1)  # error: call-overload
    judge.with_options(temperature=0)("x", style="y")  # error: arg-type
"""

MISTAKES = {i for i, line in enumerate(SNIPPET.splitlines(), start=1) if "# error:" in line}


@pytest.mark.slow
def test_types_survive_the_decorator(tmp_path: Path) -> None:
    """mypy finds the five mistakes of the snippet, each on its line, and no others."""
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\n[mypy-lmprog_runtime.*,pydantic.*,tqdm.*]\nfollow_imports = skip\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPYPATH", str(ROOT))
        cache = f"--cache-dir={tmp_path / 'cache'}"
        report, complaints, _ = api.run(["--no-error-summary", f"--config-file={config}", cache, str(file)])
    assert complaints == ""
    found = {
        int(line.split(":")[1]) for line in report.splitlines() if line.startswith(str(file)) and ": error:" in line
    }
    assert found == MISTAKES, report


@pytest.mark.slow
def test_types_survive_the_decorator_for_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    (tmp_path / "snippet.py").write_text(SNIPPET)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        report = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        pytest.skip("pyright cannot run here: it needs node")
    found = {each["range"]["start"]["line"] + 1 for each in report["generalDiagnostics"] if each["severity"] == "error"}
    assert found == MISTAKES, report["generalDiagnostics"]


def test_every_public_name_can_be_had() -> None:
    """Without any extra: backends on other packages say what is missing when they are made, not when they are named."""
    code = (
        "import sys, lmprog\n"
        "sys.modules.update(dict.fromkeys(['openai', 'anthropic', 'litellm', 'torch', 'pydantic', 'opentelemetry']))\n"
        "print([n for n in lmprog.__all__ if getattr(getattr(lmprog, n), '__name__', n) != n])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
