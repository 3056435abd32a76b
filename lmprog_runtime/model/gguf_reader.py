"""Reads the head of a GGUF file: its metadata, and which tensor lies where. Knows no names of either.

The reader of the package gguf makes several arrays of every token and merge: 40 times the time of this one, and over
1,000 bytes each. Source of the format: the GGUF specification of ggml, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.errors import ModelUnsupported

_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_DTYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), 7: np.dtype("?"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
_HEAD = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of fields
_COUNT = struct.Struct("<Q")
_KIND = struct.Struct("<I")
_ELEMENTS = struct.Struct("<IQ")  # of an array: their type and number
_PLACE = struct.Struct("<IQ")  # of a tensor: how it is stored, and where after the head


class StoredTensor(NamedTuple):
    """A tensor as it lies in the file."""

    name: str
    kind: Any  # gguf.GGMLQuantizationType
    shape: tuple[int, ...]  # of its values; those of the last dimension are next to each other
    data: NDArray[np.uint8]  # [bytes], mapped


class GgufContent(NamedTuple):
    """What a file holds."""

    metadata: dict[str, Any]  # numbers, strings, and lists of one of them
    tensors: list[StoredTensor]


def read_gguf(path: Path) -> GgufContent:
    """Map a file and read its head. Raises ModelUnsupported when it is no GGUF file, or not all of one."""
    try:
        return _read(np.memmap(path, mode="r"))
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise ModelUnsupported(
            f"{path} cannot be read as a GGUF file ({error}): it is damaged, or of a newer kind; fetch it again, or "
            "take one of another quantisation."
        ) from error


def _read(file: NDArray[np.uint8]) -> GgufContent:
    head = _Head(file.data)
    magic, version, num_tensors, num_fields = head.unpack(_HEAD)
    if magic != b"GGUF" or version not in _VERSIONS:
        raise ValueError(f"it starts with {magic + _KIND.pack(version)!r}")
    metadata = dict(head.field() for _ in range(num_fields))
    places = [head.place() for _ in range(num_tensors)]
    if len(metadata) < num_fields or len({place.name for place in places}) < num_tensors:
        raise ValueError("it has two fields, or two tensors, of the same name")
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(f"its tensors begin at multiples of {alignment!r}")
    start = head.at + -head.at % alignment
    return GgufContent(metadata, [_map(np.asarray(file), start, place) for place in places])


class _Place(NamedTuple):
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # after the head


def _map(file: NDArray[np.uint8], start: int, place: _Place) -> StoredTensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    kind = GGMLQuantizationType(place.kind)
    values_of_block, bytes_of_block = GGML_QUANT_SIZES[kind]
    begin = start + place.offset
    end = begin + math.prod(place.shape) // values_of_block * bytes_of_block
    if end > len(file) or math.prod(place.shape[-1:]) % values_of_block:
        raise ValueError(f"{place.name} does not fit into it")
    return StoredTensor(place.name, kind, place.shape, file[begin:end])


class _Head:
    """Reads one thing after the other. Raises struct.error or ValueError at the end of the file."""

    def __init__(self, data: memoryview) -> None:
        self._data, self.at = data, 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._data, self.at)
        self.at += layout.size
        return values

    def field(self) -> tuple[str, Any]:
        (name,) = self._strings(1)
        (kind,) = self.unpack(_KIND)
        return name, self._values(*self.unpack(_ELEMENTS)) if kind == _ARRAY else self._values(kind, 1)[0]

    def place(self) -> _Place:
        (name,) = self._strings(1)
        (dimensions,) = self.unpack(_KIND)
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"{name} has {dimensions} dimensions")
        sizes = self._values(10, dimensions)
        return _Place(name, tuple(reversed(sizes)), *self.unpack(_PLACE))

    def _values(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self._strings(count)
        if kind not in _DTYPES:
            raise ValueError(f"it has a value of type {kind}")
        values: list[Any] = np.frombuffer(self._data, _DTYPES[kind], count, self.at).tolist()
        self.at += count * _DTYPES[kind].itemsize
        return values

    def _strings(self, count: int) -> list[str]:
        data, at, read_length, found = self._data, self.at, _COUNT.unpack_from, []
        for _ in range(count):
            begin = at + _COUNT.size
            at = begin + read_length(data, at)[0]
            if at > len(data):
                raise ValueError("a text goes beyond its end")
            found.append(str(data[begin:at], "utf-8"))
        self.at = at
        return found
