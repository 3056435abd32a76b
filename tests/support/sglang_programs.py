"""SGLang's own file of test programs, out of its wheel: fetched by pip, kept in pytest's cache, never copied."""

from __future__ import annotations

import subprocess
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

MEMBER = "sglang/test/test_programs.py"
_ANY_PYTHON = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_34_x86_64", "--platform=any"]


def fetch(version: str, folder: Path) -> types.ModuleType:
    """The module of that version. `import sglang` must be the stand-in by now. Skips where the wheel cannot be had."""
    wheels = list(folder.glob(f"sglang-{version}-*.whl")) or _download(version, folder)
    with zipfile.ZipFile(wheels[0]) as wheel:
        source = wheel.read(MEMBER).decode()
    module = types.ModuleType(f"sglang_test_programs_{version.replace('.', '_')}")
    exec(compile(source, f"{wheels[0].name}/{MEMBER}", "exec"), module.__dict__)
    return module


def _download(version: str, folder: Path) -> list[Path]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *_ANY_PYTHON]
    try:
        done = subprocess.run(
            [*command, f"sglang=={version}"], capture_output=True, text=True, timeout=100, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the wheel of sglang {version} could not be fetched in time")
    if done.returncode:
        pytest.skip(f"the wheel of sglang {version} cannot be had: {done.stderr.strip()[-200:]}")
    return list(folder.glob(f"sglang-{version}-*.whl"))


def programs_of(module: types.ModuleType) -> dict[str, object]:
    return {name: value for name, value in vars(module).items() if name.startswith("test_")}


def ran(sgl: Any, body: Any, backend: Any, **options: Any) -> Any:
    """The state of a function of the stand-in that has run."""
    return sgl.function(body).run(backend=backend, **options)
