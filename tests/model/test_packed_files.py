"""Weights that were packed once: the same bits from the file, and a new file whenever the old one is not right."""

from __future__ import annotations

import errno
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model import packed_files
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.packed_files import packed_path, packed_weights
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.ops.native import (
    NATIVE_DTYPES,
    PackedWeights,
    available_levels,
    load_library,
    load_weights,
    pack_weights,
    save_weights,
)
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import save_model

pytestmark = pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here")
TOKENS = [5, 17, 99, 4, 63, 8, 21]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_files, "WORTH_KEEPING", 0)
    return tmp_path / "cache" / "packed"


def _files(directory: Path, name: str = "llama", *, seed: int = 0, revision: str = "1") -> ModelFiles:
    save_model(name, directory, seed=seed)
    return ModelFiles("tiny", directory, revision, 256, None, None)


def _packed(files: ModelFiles, dtype: str = "bfloat16") -> PackedWeights:
    return packed_weights(files, read_spec(files.directory), dtype)


def _path(files: ModelFiles, dtype: str = "bfloat16") -> Path:
    return packed_path(files, dtype, available_levels()[0])


def _logits(files: ModelFiles, weights: PackedWeights, dtype: str = "bfloat16") -> torch.Tensor:
    executor = CpuExecutor(read_spec(files.directory), weights, num_slots=16, dtype=dtype, threads=1)
    return executor.step(Packer(16).step([(Stream(), list(TOKENS))]))


def _fresh_logits(files: ModelFiles, dtype: str = "bfloat16") -> torch.Tensor:
    spec = read_spec(files.directory)
    executor = CpuExecutor(spec, open_weights(files.directory, spec), num_slots=16, dtype=dtype, threads=1)
    return executor.step(Packer(16).step([(Stream(), list(TOKENS))]))


@pytest.mark.parametrize("dtype", NATIVE_DTYPES)
@pytest.mark.parametrize("name", ["llama-bias", "llama-odd-sizes", "qwen3", "gemma2"])
def test_a_file_gives_the_bits_that_packing_gives(name: str, dtype: str, tmp_path: Path) -> None:
    files = _files(tmp_path / "model", name)
    expected = _fresh_logits(files, dtype)
    assert torch.equal(_logits(files, _packed(files, dtype), dtype), expected)
    (files.directory / "model.safetensors").write_bytes(b"")  # from now on, only the file can give them
    assert torch.equal(_logits(files, _packed(files, dtype), dtype), expected)


def test_small_models_are_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_files, "WORTH_KEEPING", 1 << 30)
    files = _files(tmp_path / "model")
    assert torch.equal(_logits(files, _packed(files)), _fresh_logits(files))
    assert not cache.exists()


def test_another_revision_replaces_the_file(tmp_path: Path, cache: Path) -> None:
    _packed(_files(tmp_path / "model"))
    changed = _files(tmp_path / "model", seed=1, revision="2")
    assert torch.equal(_logits(changed, _packed(changed)), _fresh_logits(changed))
    assert list(cache.glob("*.weights")) == [_path(changed)]


def test_another_build_of_the_library_replaces_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = _files(tmp_path / "model")
    _packed(files)
    before = _path(files).read_bytes()
    monkeypatch.setattr(load_library(available_levels()[0]), "build", 1)
    _packed(files)
    assert _path(files).read_bytes() != before


@pytest.mark.parametrize("part", ["header", "layers", "matrices", "end"])
def test_a_damaged_file_is_made_again(part: str, tmp_path: Path) -> None:
    files = _files(tmp_path / "model")
    _packed(files)
    whole = _path(files).read_bytes()
    at = {"header": 3, "layers": 4096 + 8, "matrices": len(whole) - 5000, "end": len(whole) - 1}[part]
    _path(files).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    assert torch.equal(_logits(files, _packed(files)), _fresh_logits(files))
    assert _path(files).read_bytes() == whole


@pytest.mark.parametrize("length", [0, 10, 5000, -1])
def test_a_file_that_was_cut_is_made_again(length: int, tmp_path: Path) -> None:
    files = _files(tmp_path / "model")
    _packed(files)
    whole = _path(files).read_bytes()
    _path(files).write_bytes(whole[:length])
    assert torch.equal(_logits(files, _packed(files)), _fresh_logits(files))
    assert _path(files).read_bytes() == whole


def test_weights_in_use_outlive_their_file(tmp_path: Path) -> None:
    files = _files(tmp_path / "model")
    expected = _fresh_logits(files)
    weights = _packed(files)
    changed = _files(tmp_path / "model", seed=1, revision="2")
    _packed(changed)
    assert torch.equal(_logits(files, weights), expected)


def test_what_fails_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    files = _files(tmp_path / "model")
    (files.directory / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(Exception, match=r"[Hh]eader"):
        _packed(files)
    assert not cache.exists()


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMPROG_CACHE", str(tmp_path / "file"))
    files = _files(tmp_path / "model")
    with caplog.at_level(logging.WARNING, "lmprog.model"):
        assert torch.equal(_logits(files, _packed(files)), _fresh_logits(files))
    assert "set LMPROG_CACHE" in caplog.text


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_costs_a_warning_and_no_second_packing(
    code: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "no")

    packings: list[object] = []
    monkeypatch.setattr(packed_files, "save_weights", fail)
    monkeypatch.setattr(packed_files, "pack_weights", lambda *given: packings.append(given) or pack_weights(*given))
    files = _files(tmp_path / "model")
    with caplog.at_level(logging.WARNING, "lmprog.model"):
        assert torch.equal(_logits(files, _packed(files)), _fresh_logits(files))
    assert "are not kept" in caplog.text
    assert len(packings) == 1
    assert not list(cache.glob("*.weights"))


def test_a_model_that_cannot_run_is_no_fault_of_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = _files(tmp_path / "model")
    with caplog.at_level(logging.WARNING, "lmprog.model"), pytest.raises(ModelUnsupported, match="no GGUF file"):
        _packed(files, "gguf")
    assert caplog.text == ""


def test_several_at_once_write_one_file(tmp_path: Path, cache: Path) -> None:
    files = _files(tmp_path / "model")
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(_packed, [files] * 4))
    expected = _fresh_logits(files)
    assert all(torch.equal(_logits(files, weights), expected) for weights in loaded)
    assert list(cache.glob("*.weights")) == [_path(files)]


def test_every_address_lies_in_the_block(tmp_path: Path) -> None:
    """The second of two copies: an address that was not moved would point into the first."""
    files = _files(tmp_path / "model", "gemma2")
    packed = _packed(files)
    save_weights(packed, tmp_path / "copy", "key")
    loaded = load_weights(tmp_path / "copy", "key", "bfloat16")
    start, end = loaded.memory.address, loaded.memory.address + loaded.memory.used
    for layer in loaded.layers:
        assert start < layer.qkv.panels < layer.down.panels < end
        assert start < layer.attention_post_norm < end
        assert layer.q_norm is None
    assert start < loaded.table.head.panels < end
