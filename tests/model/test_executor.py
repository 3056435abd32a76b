"""Choosing an executor: the first that can run the model, and all the reasons when none can."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model import kv_pool
from lmprog_runtime.model.executor import default_dtype, load_executor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.ops.native import is_native_available
from tests.support.step_batches import Packer, Stream
from tests.support.tiny_models import TinyModels, make_model


def _files(directory: Path) -> ModelFiles:
    return ModelFiles("tiny", directory, "0", 256, None, None)


@pytest.mark.parametrize("kind", ["torch", "hf"])
def test_the_kind_asked_for(kind: str, tiny_models: TinyModels) -> None:
    executor = load_executor(_files(tiny_models.directory("llama")), kind=kind, dtype="float32", num_slots=50)  # type: ignore[arg-type]
    found = executor.step(Packer(50).step([(Stream(), [5, 6, 7])]))
    assert executor.name == kind
    assert float((found - tiny_models.logits("llama", [5, 6, 7])).abs().max()) < 1e-5


def test_auto_takes_the_native_one_where_it_is_built(tiny_models: TinyModels) -> None:
    if not is_native_available():
        pytest.skip("the C++ library is not built")
    files = _files(tiny_models.directory("llama"))
    assert load_executor(files, device="cpu", dtype="float32", num_slots=50).name == "cpu"


def test_auto_falls_back_to_transformers_for_other_families(tmp_path: Path) -> None:
    make_model("gpt_neox").save_pretrained(tmp_path)
    assert load_executor(_files(tmp_path), device="cpu", dtype="float32", num_slots=50).name == "hf"


def test_a_float_type_that_only_torch_has(tiny_models: TinyModels) -> None:
    executor = load_executor(_files(tiny_models.directory("llama")), device="cpu", dtype="float16", num_slots=50)
    assert (executor.name, executor.dtype) == ("torch", "float16")


def test_all_reasons_when_none_can(tmp_path: Path) -> None:
    make_model("bloom", n_head=4, n_layer=4).save_pretrained(tmp_path)
    with pytest.raises(ModelUnsupported) as caught:
        load_executor(_files(tmp_path), device="cpu", dtype="float32", num_slots=50)
    message = str(caught.value)
    assert "torch: There is no model description for 'bloom'" in message
    assert "hf: transformers' 'bloom'" in message


def test_an_unknown_field_of_a_known_family_goes_to_transformers(tmp_path: Path, tiny_models: TinyModels) -> None:
    tiny_models.model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "some_new_field": 1}))
    assert load_executor(_files(tmp_path), device="cpu", dtype="float32", num_slots=50).name == "hf"


def test_quantised_types_are_not_for_torch(tiny_models: TinyModels) -> None:
    with pytest.raises(ModelUnsupported, match="not in int8"):
        load_executor(_files(tiny_models.directory("llama")), kind="torch", dtype="int8", num_slots=50)


def test_int8_kv_takes_its_bytes_and_gives_nearly_the_logits_of_float_kv(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself the pool takes half of the free memory: 4 layers of 2 x 2 heads, 32 elements each with padding."""
    if not is_native_available():
        pytest.skip("the C++ library is not built")
    monkeypatch.setattr(kv_pool, "free_memory", lambda device: 2 * 4 * 192 * 1000)
    files, found = _files(tiny_models.directory("llama")), {}
    for kv, slot_bytes in (("auto", 4 * 32 * 4), ("int8", 192)):  # of a layer; int8: 128 and 4 scales, in cache lines
        executor = load_executor(files, device="cpu", dtype="float32", kv_cache_dtype=kv)
        assert executor.kv_dtype == {"auto": "float32", "int8": "int8"}[kv]
        assert executor.read_kv(np.zeros(1, np.int32)).shape == (1, 4 * slot_bytes)
        assert executor.num_slots == 192 * 1000 // slot_bytes
        found[kv] = executor.step(Packer(50).step([(Stream(), [5, 6, 7, 8])])).clone()
    difference = (found["int8"] - found["auto"]).abs().max()
    assert 0 < difference < 0.02 * found["auto"].abs().max()


@pytest.mark.parametrize("kind", ["torch", "hf"])
def test_int8_kv_is_for_the_native_executor_alone(kind: str, tiny_models: TinyModels) -> None:
    files = _files(tiny_models.directory("llama"))
    with pytest.raises(ModelUnsupported, match="not in int8; use kv_cache_dtype='auto'"):
        load_executor(files, kind=kind, dtype="float32", num_slots=50, kv_cache_dtype="int8")  # type: ignore[arg-type]


def test_an_unknown_type_of_kv_is_refused(tiny_models: TinyModels) -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype is 'fp8'; known: auto, int8"):
        load_executor(_files(tiny_models.directory("llama")), num_slots=50, kv_cache_dtype="fp8")


def test_the_default_dtype_is_one_that_every_executor_has() -> None:
    assert default_dtype("cpu") in ("float32", "bfloat16")
