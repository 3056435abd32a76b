"""`lmprog bench`: its list of benchmarks, and what each name leads to."""

from __future__ import annotations

import importlib

import pytest

from lmprog.bench_command import _BENCHMARKS, main
from lmprog.cli import main as lmprog


@pytest.mark.parametrize("name", _BENCHMARKS)
def test_every_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        lmprog(["bench", name, "--help"])
    assert ended.value.code == 0
    assert f"lmprog bench {name}" in capsys.readouterr().out


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    assert main(["poems"]) == 2
    shown = capsys.readouterr().out
    assert all(f"  {name}" in shown for name in _BENCHMARKS)


def test_the_alias_is_the_same_benchmark() -> None:
    alias = importlib.import_module("lmprog_runtime.bench_serving")
    serving = importlib.import_module("lmprog_runtime.bench.serving")
    assert alias.script is serving.script


def test_a_mistake_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmprog(["bench", "serving", "--backend", "openai"]) == 1
    assert capsys.readouterr().err.strip().startswith("lmprog: --backend openai needs --base-url")
