"""KV rows in fewer bytes, for the tiers below the pool. With numpy, so that it needs no device and no torch."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.cache.registry import named

Rows = NDArray[np.uint8]
"""[tokens, bytes per token], as the executor's `read_kv` gives them."""

_GROUP = 32
"""Values that share a scale. One scale per token loses too much to the outlier channels of K."""


class Codec(Protocol):
    name: str

    def encode(self, rows: Rows) -> bytes: ...

    def decode(self, data: bytes, tokens: int) -> Rows: ...


class Raw:
    """Bit for bit."""

    name = "raw"

    def __init__(self, dtype: str) -> None:
        pass

    def encode(self, rows: Rows) -> bytes:
        return rows.tobytes()

    def decode(self, data: bytes, tokens: int) -> Rows:
        return np.frombuffer(data, dtype=np.uint8).reshape(tokens, -1)


class Bfloat16:
    """Half the bytes of float32, rounded to nearest even; the pool's own bits when it holds bfloat16."""

    name = "bfloat16"

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def encode(self, rows: Rows) -> bytes:
        return rows.tobytes() if self._dtype == "bfloat16" else _to_bfloat16(_to_float32(rows, self._dtype)).tobytes()

    def decode(self, data: bytes, tokens: int) -> Rows:
        bits = np.frombuffer(data, dtype=np.uint16).reshape(tokens, -1)
        return bits.view(np.uint8) if self._dtype == "bfloat16" else _from_float32(_widen(bits), self._dtype)


class Int8:
    """A byte per value and a float16 scale per group of 32 values, symmetric: at most half a step off."""

    name = "int8"

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def encode(self, rows: Rows) -> bytes:
        values = _to_float32(rows, self._dtype)
        width = values.shape[1]
        grouped = np.pad(values, ((0, 0), (0, -width % _GROUP))).reshape(len(values), -1, _GROUP)
        scales = (np.abs(grouped).max(axis=2, keepdims=True) / 127).astype(np.float16)
        steps = np.where(scales > 0, scales, 1).astype(np.float32)
        codes = np.clip(np.rint(grouped / steps), -127, 127).astype(np.int8)
        return b"".join((np.int64(width).tobytes(), scales.tobytes(), codes.tobytes()))

    def decode(self, data: bytes, tokens: int) -> Rows:
        width = int(np.frombuffer(data, dtype=np.int64, count=1)[0])
        groups = -(-width // _GROUP)
        count = tokens * groups
        scales = np.frombuffer(data, dtype=np.float16, count=count, offset=8).reshape(tokens, groups, 1)
        codes = np.frombuffer(data, dtype=np.int8, offset=8 + 2 * count).reshape(tokens, groups, _GROUP)
        values = codes.astype(np.float32) * scales.astype(np.float32)
        return _from_float32(values.reshape(tokens, -1)[:, :width], self._dtype)


CODECS = {codec.name: codec for codec in (Raw, Bfloat16, Int8)}


def codec_for(name: str, dtype: str) -> Codec:
    """`dtype` is what the pool holds: float32, bfloat16, float16 or int8. ValueError for unknown names, and for int8
    with any but "raw"."""
    known: dict[str, type[Raw] | type[Bfloat16] | type[Int8]] = dict(CODECS)
    kind = named("KV compression", name, known)
    if kind is not Raw and dtype not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"KV of type {dtype} cannot be compressed with {name!r}; use 'raw'.")
    return kind(dtype)


def _to_float32(rows: Rows, dtype: str) -> NDArray[np.float32]:
    if dtype == "bfloat16":
        return _widen(rows.view(np.uint16))
    return rows.view(np.float32 if dtype == "float32" else np.float16).astype(np.float32)


def _from_float32(values: NDArray[np.float32], dtype: str) -> Rows:
    if dtype == "bfloat16":
        return _to_bfloat16(values).view(np.uint8)
    return np.ascontiguousarray(values.astype(dtype)).view(np.uint8)


def _widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    values: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded: NDArray[np.uint32] = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    upper: NDArray[np.uint16] = (rounded >> np.uint32(16)).astype(np.uint16)
    return upper
