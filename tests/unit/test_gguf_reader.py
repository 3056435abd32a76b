"""What gguf's own writer writes, read back; and files of which something is wrong."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.gguf_reader import read_gguf
from tests.support.gguf_files import write_gguf
from tests.support.tiny_models import make_model

Kind, Type = gguf.GGMLQuantizationType, gguf.GGUFValueType


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    **{Type[f"UINT{bits}"]: integers(bits, signed=False) for bits in (8, 16, 32, 64)},
    **{Type[f"INT{bits}"]: integers(bits, signed=True) for bits in (8, 16, 32, 64)},
    Type.FLOAT32: st.floats(width=32, allow_nan=False),
    Type.FLOAT64: st.floats(allow_nan=False),
    Type.BOOL: st.booleans(),
    Type.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
}
FIELD = st.sampled_from(list(VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), VALUES[kind]))
ARRAY = st.sampled_from(list(VALUES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(VALUES[kind], min_size=1, max_size=5))
)


@given(fields=st.dictionaries(st.text("abc.", min_size=1, max_size=8), FIELD | ARRAY, max_size=6))
def test_fields_are_those_that_were_written(fields: dict[str, tuple[Any, Any]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "any")
    for name, (kind, value) in fields.items():
        if isinstance(value, list):
            writer.add_key_value(name, value, Type.ARRAY, sub_type=kind)
        else:
            writer.add_key_value(name, value, kind)
    _finish(writer)
    wanted = {name: value for name, (_, value) in fields.items()}
    assert read_gguf(path).metadata == {"general.architecture": "any", **wanted}


@pytest.mark.parametrize("alignment", [None, 64])
def test_tensors_are_those_that_were_written(alignment: int | None, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "any")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name, values in arrays.items():
        writer.add_tensor(name, gguf.quants.quantize(values, Kind[name]), raw_dtype=Kind[name])
    _finish(writer)
    found = {tensor.name: tensor for tensor in read_gguf(tmp_path / "m.gguf").tensors}
    assert {name: tensor.shape for name, tensor in found.items()} == SHAPES
    for name, values in arrays.items():
        assert found[name].kind == Kind[name]
        assert found[name].data.tobytes() == gguf.quants.quantize(values, Kind[name]).tobytes()


SHAPES = {"F32": (3,), "F16": (5, 2), "BF16": (2, 3, 7), "Q4_1": (3, 64), "Q8_0": (1, 32)}


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, "llama", make_model("llama", vocab_size=259, num_hidden_layers=1))
    return path.read_bytes()


def _refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ModelUnsupported, match=r"m\.gguf cannot be read as a GGUF file \(.*\): .* fetch it") as caught:
        read_gguf(path)
    return str(caught.value)


NOTHING = struct.pack("<QQ", 0, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"GGML\3\0\0\0" + NOTHING, "GGML"),
        (b"GGUF\1\0\0\0" + NOTHING, r"GGUF\x01"),
        (b"GGUF\0\0\0\3" + NOTHING, r"GGUF\x00\x00\x00\x03"),  # big-endian
    ],
)
def test_what_is_no_gguf_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    assert message in _refusal(tmp_path / "m.gguf", content)


def _field(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


ONE = struct.pack("<I", 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([_field("a", 4, ONE), _field("a", 4, ONE)], "two fields, or two tensors, of the same name"),
        ([_field("a", 13, ONE)], "a value of type 13"),
        ([_field("a", 9, struct.pack("<IQ", 9, 1))], "a value of type 9"),
        ([_field("general.alignment", 4, struct.pack("<I", 0))], "multiples of 0"),
        ([_field("general.alignment", 8, struct.pack("<Q", 0))], "multiples of ''"),
        ([_field("a", 8, struct.pack("<Q", 1) + b"\xff")], "utf-8"),
        ([_field("a", 9, struct.pack("<IQ", 4, 2**63))], ""),
        ([_field("a", 9, struct.pack("<IQ", 8, 2**63))], ""),
        ([_field("a", 8, struct.pack("<Q", 2**64 - 1))], ""),
    ],
)
def test_fields_that_cannot_be_are_refused(fields: list[bytes], message: str, tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields))
    assert message in _refusal(tmp_path / "m.gguf", head + b"".join(fields))


@pytest.mark.parametrize("dimensions", [5, 24_000, 2**32 - 1])
def test_a_tensor_of_too_many_dimensions_is_refused_at_once(dimensions: int, tmp_path: Path) -> None:
    """Their product would be a number of a million digits."""
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<I", dimensions) + b"\xff" * 200_000
    content = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor
    assert f"t has {dimensions} dimensions" in _refusal(tmp_path / "m.gguf", content)


@given(data=st.data())
def test_a_file_that_is_cut_or_changed_is_refused_or_read(
    data: st.DataObject, whole: bytes, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    content = bytearray(whole[: data.draw(st.integers(0, len(whole) - 1))])
    _refusal(path, bytes(content))
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 9000))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with suppress(ModelUnsupported):  # and nothing else
        read_gguf(path)
