"""The examples on the scripted backend: they run, and a fault at any model call surfaces as itself, in time."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

from lmprog import ScriptedBackend, ScriptedCall
from tests.support.language import no_threads_left

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
pytestmark = pytest.mark.timeout(60)


def answer(call: ScriptedCall) -> str:
    """Something that satisfies each constraint that the examples use."""
    if call.constraint is None:
        return f" answer {call.number}"
    if call.constraint.kind == "json_schema":
        return json.dumps(_instance(json.loads(call.constraint.source)))
    return " 9 * 40"


def _instance(schema: Any) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        return {name: _instance(each) for name, each in schema["properties"].items()}
    return {"string": "text", "integer": 1, "number": 1.5, "boolean": True, "array": []}[schema["type"]]


def main_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_fail_well(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if path.stem == "dspy_program":
        pytest.importorskip("dspy", reason="dspy is not installed")
    main, healthy = main_of(path), ScriptedBackend(answer)
    main(healthy)
    assert capsys.readouterr().out
    for k in range(1, len(healthy.calls) + 1):
        boom = RuntimeError(f"boom at call {k}")
        backend = ScriptedBackend(answer, errors={k: boom}, delay=0.0005)
        start = time.monotonic()
        with no_threads_left(), pytest.raises(RuntimeError) as caught:
            main(backend)
        assert caught.value is boom
        assert time.monotonic() - start < 60
        assert backend.open_streams == 0
