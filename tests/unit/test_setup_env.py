"""scripts/setup_env on machines that lack something: one sentence that says what to install; nothing half made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash")
TOOLS = ("cat", "chmod", "cksum", "cut", "dirname", "mkdir", "rm", "tail", "touch")

pytestmark = pytest.mark.skipif(BASH is None, reason="the script is one of bash")

PYTHON = """#!{bash}
case "$*" in
  "-c "*) exit {is_wrong} ;;
  "-V") echo "Python 3.9.2" ;;
  "-m venv "*) mkdir -p .venv/bin; {venv} ;;
  *) echo "$*" >> calls; {pip} ;;
esac
"""


class Machine:
    """A checkout with nothing but what the script reads, and a PATH with nothing but what it is given."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "checkout", folder / "bin"
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("scripts/setup_env", "pyproject.toml", "setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, self.root / name)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(str(shutil.which(tool)))

    def add(self, name: str, text: str = "") -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def add_python(self, *, is_wrong: bool = False, has_venv: bool = True, pip: str = "exit 0") -> None:
        venv = "cat $0 > .venv/bin/python; chmod +x .venv/bin/python"
        parts = {"bash": BASH, "is_wrong": int(is_wrong), "venv": venv if has_venv else "exit 1", "pip": pip}
        self.add("python3", PYTHON.format(**parts))

    def set_up(self, extras: str = "runtime") -> tuple[int, str]:
        """Exit status, and what it says."""
        done = subprocess.run(
            [str(BASH), "scripts/setup_env", extras],
            cwd=self.root, env={"PATH": str(self.bin)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout == ""
        return done.returncode, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_python(machine: Machine) -> None:
    assert machine.set_up() == (
        1,
        "lmprog needs Python 3.10 to 3.13: install python3, or set PYTHON to one.\n",
    )


def test_another_python(machine: Machine) -> None:
    machine.add_python(is_wrong=True)
    assert machine.set_up() == (
        1,
        "lmprog needs Python 3.10 to 3.13, and python3 is 3.9.2: set PYTHON to another one.\n",
    )


def test_no_venv_module(machine: Machine) -> None:
    machine.add_python(has_venv=False)
    told = "Python's venv module is missing: install the package python3-venv, then run this again.\n"
    assert machine.set_up() == (1, told)
    assert not (machine.root / ".venv").exists(), "or the next call would take it for whole"


@pytest.mark.parametrize("has_compiler", [True, False])
def test_a_missing_compiler_is_told_and_no_obstacle(machine: Machine, has_compiler: bool) -> None:
    machine.add_python()
    if has_compiler:
        machine.add("g++")
    status, told = machine.set_up()
    assert status == 0
    sentence = "No C++ compiler found: lmprog runs on its slower Python fallbacks. Install g++ and run this again"
    assert (sentence in told) == (not has_compiler)
    assert "Installing lmprog[runtime] into .venv" in told
    assert "-e .[runtime]" in (machine.root / "calls").read_text()
    assert machine.set_up() == (0, ""), "the second time it only looks"


def test_what_pip_said_last_is_shown(machine: Machine) -> None:
    machine.add_python(pip="echo no room >&2; exit 1")
    machine.add("g++")
    status, told = machine.set_up()
    assert status == 1
    assert told.endswith("no room\nInstalling failed; the whole log is in .venv/install.log.\n")
    assert machine.set_up()[0] == 1, "it is not taken for installed"


def test_the_demo_runs_on_what_the_tests_installed(machine: Machine) -> None:
    machine.add_python()
    machine.add("g++")
    assert "Installing lmprog[all,clients]" in machine.set_up("all,clients")[1]
    assert machine.set_up("runtime") == (0, "")


def test_the_tests_need_more_than_the_demo(machine: Machine) -> None:
    machine.add_python()
    machine.add("g++")
    machine.set_up("runtime")
    assert "Installing lmprog[all,clients]" in machine.set_up("all,clients")[1]
    assert machine.set_up("all,clients") == machine.set_up("runtime") == (0, "")


@pytest.mark.parametrize("first", ["runtime", "all,clients"])
def test_another_state_of_the_files_is_installed_and_replaces_the_first(machine: Machine, first: str) -> None:
    machine.add_python()
    machine.add("g++")
    settings = machine.root / "pyproject.toml"
    before = settings.read_text()
    machine.set_up(first)
    settings.write_text(before + "\n# changed\n")
    assert "Installing lmprog[runtime]" in machine.set_up("runtime")[1]
    settings.write_text(before)
    assert "Installing lmprog[runtime]" in machine.set_up("runtime")[1]


def test_an_attempt_that_failed_leaves_nothing_that_counts_as_installed(machine: Machine) -> None:
    machine.add_python()
    machine.add("g++")
    machine.set_up("runtime")
    (machine.root / ".venv/bin/python").write_text(f"#!{BASH}\nexit 1\n")
    assert machine.set_up("all,clients")[0] == 1
    assert machine.set_up("runtime")[0] == 1
