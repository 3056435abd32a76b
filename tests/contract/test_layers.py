"""Layers import downward only, and light packages stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "lmprog": ROOT / "lmprog",
    "lmprog_runtime": ROOT / "lmprog_runtime",
    "lmprog_kernels": ROOT / "kernels/lmprog_kernels",
}
MAY_IMPORT_RUNTIME = {"lmprog/backends/local.py", "lmprog/cli.py", "lmprog/bench/command.py"}
HEAVY = {"torch", "transformers"}


def _files(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _importers(package: str, target: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in _files(package)
        if any(name.split(".")[0] == target for name in _imports(path))
    }


@pytest.mark.parametrize(
    ("package", "target"),
    [
        ("lmprog_runtime", "lmprog"),
        ("lmprog_kernels", "lmprog"),
        ("lmprog_kernels", "lmprog_runtime"),
        ("lmprog", "lmprog_kernels"),
    ],
)
def test_nothing_imports_upward_or_past_its_neighbour(package: str, target: str) -> None:
    assert _importers(package, target) == set()


def test_only_the_local_backend_and_the_command_line_know_the_runtime() -> None:
    assert _importers("lmprog", "lmprog_runtime") <= MAY_IMPORT_RUNTIME


def test_only_ops_knows_the_kernels() -> None:
    assert all(path.startswith("lmprog_runtime/ops/") for path in _importers("lmprog_runtime", "lmprog_kernels"))


@pytest.mark.parametrize("folder", ["cache", "scheduler", "constraint"])
def test_logic_without_torch(folder: str) -> None:
    users = {path for target in HEAVY for path in _importers("lmprog_runtime", target)}
    assert not [path for path in users if path.startswith(f"lmprog_runtime/{folder}/")]


def test_the_engine_does_not_know_the_server() -> None:
    outside = [path for path in _files("lmprog_runtime") if "server" not in path.parts]
    assert not [
        path
        for path in outside
        if any(name.startswith("lmprog_runtime.server") for name in _imports(path))
        and path.name not in {"launch_server.py", "cli.py"}
    ]


def test_kernels_is_a_source_root_and_no_package() -> None:
    """transformers probes a package called `kernels`; ours must not answer."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_import_is_light() -> None:
    code = "import sys, lmprog; print(sorted({'torch', 'transformers', 'numpy', 'requests'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_no_pickle_and_no_eval() -> None:
    banned = {"pickle", "dill", "marshal", "cloudpickle", "shelve"}
    for package in PACKAGES:
        for path in _files(package):
            assert not banned & {name.split(".")[0] for name in _imports(path)}, path
            calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
            assert not names & {"eval", "exec"}, path
