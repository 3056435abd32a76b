"""Choosing an executor: the first that can run the model, and all the reasons when none can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lmprog_runtime.errors import ModelUnsupported
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


def test_the_default_dtype_is_one_that_every_executor_has() -> None:
    assert default_dtype("cpu") in ("float32", "bfloat16")
