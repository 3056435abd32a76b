"""The fixture that users test their programs with, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest
from lmprog import NoBackend, function, gen

@function
def capital(s, country):
    s += f"The capital of {country} is" + gen("city", temperature=0)

def test_answers_come_from_the_script(scripted):
    backend = scripted({"France": " Paris", "Japan": " Tokyo"})
    assert capital.run(country="Japan")["city"] == " Tokyo"
    assert backend.calls[0].sampling.temperature == 0

def test_the_last_one_made_is_the_default(scripted):
    scripted("one")
    scripted("two", errors={2: RuntimeError("boom")})
    assert capital.run(country="x")["city"] == "two"
    with pytest.raises(RuntimeError, match="boom"):
        capital.run(country="x").sync()

def test_nothing_is_left_for_others():
    with pytest.raises(NoBackend):
        capital.run(country="x")

def test_a_stream_is_left_open(scripted):
    scripted("x").open_stream()
"""


def test_the_plugin(tmp_path):
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "lmprog.testing", "-p", "no:cacheprovider", "-q", "test_mine.py"]
    environment = {"PYTHONPATH": f"{ROOT}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": ""}
    out = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "4 passed, 1 error" in out.stdout, out.stdout + out.stderr
    assert "1 streams are still open; has a run not been read?" in out.stdout
