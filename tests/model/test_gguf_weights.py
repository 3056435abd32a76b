"""Quantised matrices as a GGUF file stores them: the same numbers, the same bytes as packing, the same logits."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.executor import ExecutorKind, default_dtype, load_executor
from lmprog_runtime.model.gguf_convert import GgufFile, write_safetensors
from lmprog_runtime.model.gguf_weights import _READERS, open_gguf_weights
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.ops.native import GroupedMatrix, available_levels, pack_weights
from tests.support.gguf_files import write_gguf
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import make_model

Kind = gguf.GGMLQuantizationType
native = pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here")
TOKENS = [5, 17, 99, 4, 63, 8, 21]


def _random_blocks(kind: str, rows: int, blocks: int) -> np.ndarray:
    """[rows, bytes] of any integers, with scales that are numbers."""
    generator = np.random.default_rng(0)
    size, _ = _READERS[kind]
    raw = generator.integers(0, 256, (rows, blocks, size), np.uint8)
    floats = 1 if kind in ("Q4_0", "Q8_0") else 2
    scales = generator.uniform(0.001, 0.1, (rows, blocks, floats)).astype(np.float16)
    raw[..., : 2 * floats] = scales.view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", _READERS)
def test_groups_are_the_numbers_of_the_blocks(kind: str) -> None:
    raw = _random_blocks(kind, 5, 3)
    size, read = _READERS[kind]
    integers, scales, minima = (None if part is None else torch.from_numpy(np.ascontiguousarray(part).reshape(5, -1))
                                for part in read(raw.reshape(5, -1, size)))  # fmt: skip
    assert integers is not None
    assert scales is not None
    found = GroupedMatrix(integers, scales, minima).to_float().numpy()
    expected = gguf.quants.dequantize(raw, Kind[kind])
    if kind == "Q4_K":
        assert np.abs(found - expected).max() < 2**-10 * np.abs(expected).max()
    else:
        assert np.array_equal(found, expected)


def _write(directory: Path, kind: str, values_kind: str | None = None, **fields: object) -> Path:
    """`values_kind`: of the matrices that make attention's values, where it is another."""
    model = make_model("llama", vocab_size=259, **fields)
    kinds = {True: Kind[values_kind or kind], False: Kind[kind]}
    write_gguf(directory / "m.gguf", "llama", model, lambda name: kinds["v_proj" in name])
    return directory / "m.gguf"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))


def _logits(executor: object) -> Tensor:
    return executor.step(Packer(16).step([(Stream(), list(TOKENS))]))  # type: ignore[attr-defined]


@native
@pytest.mark.parametrize(("kind", "head_dim"), [("Q4_0", 32), ("Q4_1", 32), ("Q8_0", 32), ("Q4_1", 16), ("Q8_0", 16)])
def test_logits_are_those_of_the_numbers(kind: str, head_dim: int, tmp_path: Path) -> None:
    """Against the same numbers in float32; inputs in 8 bits make the difference."""
    files = resolve_model(_write(tmp_path, kind, head_dim=head_dim), progress=False)
    found = _logits(load_executor(files, kind="cpu", dtype="gguf", num_slots=16, threads=1))
    expected = _logits(load_executor(files, kind="cpu", dtype="float32", num_slots=16, threads=1))
    assert float((found - expected).abs().max()) < 0.03 * float(expected.abs().max())


@native
@pytest.mark.parametrize(("kind", "dtype"), [("Q8_0", "int8"), ("Q4_1", "int4")])
def test_bytes_are_those_of_packing_the_numbers(kind: str, dtype: str, tmp_path: Path) -> None:
    """Where quantising the numbers again finds the same integers, layers of gates, values and heads are equal."""
    files = resolve_model(_write(tmp_path, kind, head_dim=32, intermediate_size=160), progress=False)
    assert files.gguf is not None
    spec = read_spec(files.directory)
    stored = pack_weights(spec, open_gguf_weights(files.gguf, spec, as_stored=True), "gguf")
    again = pack_weights(spec, open_gguf_weights(files.gguf, spec, as_stored=False), dtype)
    for index in range(spec.num_layers):
        for part in ("qkv", "output", "gate_up", "down"):
            mine, theirs = getattr(stored.layers[index], part), getattr(again.layers[index], part)
            assert (mine.format, mine.rows, mine.columns) == (theirs.format, theirs.rows, theirs.columns)
    start, end = stored.layers[0].qkv.panels, stored.layers[-1].down.panels
    length = end - start
    offset, other = start - stored.memory.address, again.layers[0].qkv.panels - again.memory.address
    mine, theirs = stored.memory.bytes[offset : offset + length], again.memory.bytes[other : other + length]
    assert float((mine == theirs).float().mean()) > 0.97  # ties between two integers, and scales that round otherwise


@native
def test_parts_of_several_kinds_become_8_bit(tmp_path: Path) -> None:
    files = resolve_model(_write(tmp_path, "Q4_1", "Q8_0"), progress=False)
    assert files.gguf is not None
    layer = open_gguf_weights(files.gguf, read_spec(files.directory), as_stored=True).layer(0)
    assert isinstance(layer.qkv, Tensor)
    assert isinstance(layer.gate_up, GroupedMatrix)
    found = _logits(load_executor(files, kind="cpu", dtype="gguf", num_slots=16, threads=1))
    expected = _logits(load_executor(files, kind="cpu", dtype="float32", num_slots=16, threads=1))
    assert float((found - expected).abs().max()) < 0.03 * float(expected.abs().max())


@native
@pytest.mark.parametrize(("first", "others"), [("Q8_0", "Q4_1"), ("Q4_1", "Q8_0"), ("Q4_0", "Q8_0")])
def test_layers_of_several_kinds(first: str, others: str, tmp_path: Path) -> None:
    """As in the files that llama.cpp calls Q4_K_M: some layers have more bits than others."""
    model = make_model("llama", vocab_size=259, head_dim=32)
    kinds = {True: Kind[first], False: Kind[others]}
    write_gguf(tmp_path / "m.gguf", "llama", model, lambda name: kinds["layers.0." in name])
    files = resolve_model(tmp_path / "m.gguf", progress=False)
    found = _logits(load_executor(files, kind="cpu", dtype="gguf", num_slots=16, threads=1))
    expected = _logits(load_executor(files, kind="cpu", dtype="float32", num_slots=16, threads=1))
    assert float((found - expected).abs().max()) < 0.03 * float(expected.abs().max())


def test_a_file_of_floats_is_refused(tmp_path: Path) -> None:
    files = resolve_model(_write(tmp_path, "F16"), progress=False)
    assert files.gguf is not None
    with pytest.raises(ModelUnsupported, match="no quantised weights"):
        open_gguf_weights(files.gguf, read_spec(files.directory), as_stored=True)


@native
@pytest.mark.parametrize(
    ("kind", "executor", "dtype"), [("Q4_1", "cpu", "gguf"), ("Q4_1", "torch", None), ("F16", "cpu", None)]
)
def test_a_quantised_file_runs_as_it_is_by_default(
    kind: str, executor: ExecutorKind, dtype: str | None, tmp_path: Path
) -> None:
    files = resolve_model(_write(tmp_path, kind), progress=False)
    loaded = load_executor(files, kind=executor, device="cpu", num_slots=16, threads=1)
    assert loaded.dtype == (dtype or default_dtype("cpu"))


@native
def test_a_model_that_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    files = resolve_model(_write(tmp_path, "Q8_0"), progress=False)
    file = GgufFile(_write(tmp_path, "Q8_0"))
    write_safetensors(files.directory / "model.safetensors", file.tensors, lambda _: None)
    (files.directory / "lmprog.json").unlink()
    plain = resolve_model(files.directory, progress=False)
    with pytest.raises(ModelUnsupported, match="is no GGUF file"):
        load_executor(plain, kind="cpu", dtype="gguf")
