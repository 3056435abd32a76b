"""`lmprog doctor` on a tiny model: every number is there and could be true. How fast it is, is not tested."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from lmprog_runtime import doctor
from lmprog_runtime.doctor import copy_speed
from lmprog_runtime.model import floor
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.floor import NUM_SLOTS, measure_floors, step_work
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.plain_batch import Part, plain_batch
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.ops.native import available_levels
from tests.support.tiny_models import TinyModels, save_whole_model

native = pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here")


@pytest.fixture(autouse=True)
def _one_step_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_whole_model(tmp_path_factory.mktemp("doctor"), vocab_size=300, max_position_embeddings=1024)


def _lines(out: str) -> dict[str, str]:
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())


def test_the_plain_check(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Environment, processor, memory, speeds."""
    monkeypatch.setattr(doctor, "copy_speed", lambda: copy_speed(megabytes=1))
    assert doctor.main(["--model", str(model), "--dtype", "float32"]) == 0
    lines = _lines(capsys.readouterr().out)
    patterns = {
        "lmprog": rf"\S+, Python {re.escape(platform.python_version())}, .+",
        "packages": rf"torch {re.escape(torch.__version__)}, .*requests \S+",
        "processor": rf"{os.cpu_count()} cores, \w.*",
        "memory": r"\d+\.\d GiB, \d+\.\d GiB free",
        "device": r"cpu \(no CUDA device\)|cuda: .+",
        "copy speed": r"\d+\.\d GB/s read and write, one thread",
        "model": rf"{re.escape(str(model))} \(.*\), loaded in \d+\.\d s",
        "runs on": r"executor \w+, float32, (cpu|cuda)",
        "context": r"1024 tokens, KV pool of \d+",
        "prompt": r"[1-9]\d* tokens/s",
        "one answer": r"[1-9]\d* tokens/s",
        "8 answers": r"[1-9]\d* tokens/s together",
        "accounting": "every slot of the pool has one owner",
    }
    assert lines.keys() == patterns.keys()
    wrong = {name: text for name, text in lines.items() if not re.fullmatch(patterns[name], text)}
    assert wrong == {}
    total, free = (float(number) for number in re.findall(r"(\d+\.\d) GiB", lines["memory"]))
    assert 0 < free <= total


@native
@pytest.mark.parametrize("dtype", ["float32", "int4"])
def test_bench_prints_rates_and_shares(dtype: str, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--model", str(model), "--dtype", dtype, "--bench"]) == 0
    lines = _lines(capsys.readouterr().out)
    assert float(lines["memory read"].split()[0]) > 0
    assert float(lines["multiply-adds"].split()[0]) > 0
    for name in ("prompt of 512", "1 at a time", "8 at a time"):
        found = re.fullmatch(rf"(\d+) tokens/s in {dtype}, (\d+)% of what (memory|arithmetic) allows", lines[name])
        assert found is not None
        assert int(found[1]) > 0


def test_other_executors_have_no_floor(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmprog_runtime.ops.native.is_native_available", lambda: False)
    assert [text for _, text in doctor.bench(str(model), "float32")] == [
        "nothing to compare: the limits are those of the cpu executor, not of torch"
    ]


def test_a_model_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--model", str(tmp_path / "nothing"), "--bench"]) == 1
    assert "There is no model" in capsys.readouterr().out


@native
def test_the_work_of_a_step_is_counted(tiny_models: TinyModels) -> None:
    directory = tiny_models.directory("llama")
    spec = read_spec(directory)
    executor = CpuExecutor(spec, open_weights(directory, spec), num_slots=8, dtype="float32", threads=1)
    tokens, slots = np.array([3, 4, 5], np.int32), np.arange(5, dtype=np.int32)
    num_bytes, flops = step_work(executor, plain_batch([Part(tokens, slots)], last_only=True))
    matrices = 4 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96)
    attention = 4 * 2 * 2 * 64 * (3 + 4 + 5)  # layers, scores and sums, multiply and add, head sizes, keys
    assert flops == 2 * (3 * matrices + 64 * 128) + attention
    assert num_bytes >= 4 * (matrices + 64 * 128) + 5 * 4 * 2 * 32 * 4


@native
def test_the_kind_of_limit_is_named(tiny_models: TinyModels) -> None:
    directory = tiny_models.directory("llama")
    spec = read_spec(directory)
    executor = CpuExecutor(spec, open_weights(directory, spec), num_slots=NUM_SLOTS, dtype="bfloat16", threads=1)
    floors, speeds = measure_floors(executor)
    assert floors.bytes_per_second > 0
    assert {speed.limit for speed in speeds} <= {"memory", "arithmetic"}
    assert all(speed.share > 0 for speed in speeds)
