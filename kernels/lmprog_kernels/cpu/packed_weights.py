"""A model's weights as the native decoder reads them: packed from tensors, or from a file that holds them packed.

A file is valid for one key, which its writer chooses, and one processor level. Its blocks are read into huge pages, as
mapping them would leave them in small ones (measured at one token per step: 3 % slower in bfloat16, 11 % in 4 bits).
Only the embedding stays mapped: a step reads a few of its rows.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from lmprog_kernels.cpu import structs
from lmprog_kernels.cpu.library import Library, load_library
from lmprog_kernels.cpu.packing import Memory, Packer, packed_bytes, pad_inputs, pad_outputs, pad_rows, round_up
from lmprog_kernels.cpu.protocols import LayerLike, SpecLike, WeightsLike

DTYPES = tuple(structs.FORMATS)
_LAYER_DTYPES = {"gguf": "int8"}  # of matrices that come as tensors, where it differs
_HEAD_DTYPES = {"int4": "int8", "gguf": "int8"}

LAYOUT_VERSION = 1
"""Counts up with every change of what is packed and written that is not in the library."""

_FIRST = 64  # bytes left free, as an offset of 0 stands for "none"
_PAGE = 1 << 12
_CHUNK = 1 << 22  # bytes with a checksum of their own
_LONGEST_HEADER = 1 << 24  # bytes


class StaleWeights(ValueError):
    """The file holds other weights than those asked for, or is damaged; write it again."""


class Table(ctypes.Structure):
    """Where the matrices and vectors are, apart from the layers'."""

    _fields_ = (("head", structs.Linear), ("final_norm", structs.Pointer))


class PackedWeights(NamedTuple):
    """All weights of a model. The addresses are those of `memory`, which must be kept as long as they are used."""

    library: Library
    dtype: str  # one of DTYPES, or "gguf"
    memory: Memory
    embedding: Tensor  # [vocab_size, hidden] of kv_dtype
    layers: Sequence[structs.Layer]
    table: Table

    @property
    def kv_dtype(self) -> torch.dtype:
        return kv_dtype(self.dtype)


def kv_dtype(dtype: str) -> torch.dtype:
    """Of the embedding, and of the KV pool unless it is int8, for weights of `dtype`."""
    return torch.float32 if dtype == "float32" else torch.bfloat16


def pack_weights(spec: SpecLike, weights: WeightsLike, dtype: str, level: str | None = None) -> PackedWeights:
    """Pack the tensors of a model. Raises NativeUnavailable.

    dtype: "int8" has groups of 32 inputs with a float16 scale (Q8_0 of GGUF), "int4" the same with a minimum (Q4_1) and
    an int8 head; "gguf" keeps quantised matrices as they are, and tensors become int8. level: the instruction set, the
    best by default.
    """
    library = load_library(level)
    memory = Memory(_FIRST + _matrix_bytes(library, spec, dtype) + _vector_bytes(spec))
    memory.take(_FIRST)
    packer = Packer(library, memory)
    layer_dtype = _LAYER_DTYPES.get(dtype, dtype)
    layers = [_pack_layer(packer, spec, weights.layer(index), layer_dtype) for index in range(spec.num_layers)]
    head = packer.linear(weights.head(), None, _HEAD_DTYPES.get(dtype, dtype))
    table = Table(head, packer.vector(weights.final_norm()))
    embedding = weights.embedding().to(kv_dtype(dtype)).contiguous()
    return PackedWeights(library, dtype, memory, embedding, layers, table)


def _matrix_bytes(library: Library, spec: SpecLike, dtype: str) -> int:
    hidden, inner, head_size = spec.hidden_size, round_up(spec.intermediate_size), round_up(spec.head_dim)
    mixed, qkv = spec.num_heads * head_size, (spec.num_heads + 2 * spec.num_kv_heads) * head_size
    shapes = ((qkv, hidden), (hidden, mixed), (2 * inner, hidden), (hidden, inner))
    dtype, head_dtype = _LAYER_DTYPES.get(dtype, dtype), _HEAD_DTYPES.get(dtype, dtype)
    layer = sum(packed_bytes(library, dtype, *shape) for shape in shapes)
    return spec.num_layers * layer + packed_bytes(library, head_dtype, spec.vocab_size, hidden)


def _vector_bytes(spec: SpecLike) -> int:
    """Enough for norms and biases, whether a model has them or not: what is not written takes no memory."""
    hidden, head_size = round_up(spec.hidden_size), round_up(spec.head_dim)
    norms = 4 * hidden + 2 * head_size
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * head_size
    biases = heads + 2 * hidden + 2 * round_up(spec.intermediate_size)
    return 4 * (spec.num_layers * (norms + biases) + hidden)


def _pack_layer(packer: Packer, spec: SpecLike, layer: LayerLike, dtype: str) -> structs.Layer:
    heads = spec.num_heads + 2 * spec.num_kv_heads
    qkv_bias = None if layer.qkv_bias is None else pad_rows(layer.qkv_bias, heads)
    return structs.Layer(  # the decoder fills in rope and window
        qkv=packer.linear(pad_outputs(layer.qkv, heads), qkv_bias, dtype),
        output=packer.linear(pad_inputs(layer.output, spec.num_heads), layer.output_bias, dtype),
        gate_up=packer.linear(layer.gate_up, layer.gate_up_bias, dtype, interleave=True),
        down=packer.linear(layer.down, layer.down_bias, dtype),
        input_norm=packer.vector(layer.input_norm),
        mlp_norm=packer.vector(layer.mlp_norm),
        attention_post_norm=packer.vector(layer.attention_post_norm),
        mlp_post_norm=packer.vector(layer.mlp_post_norm),
        q_norm=packer.vector(layer.q_norm),
        k_norm=packer.vector(layer.k_norm),
    )


# -- files: a line with a checksum and JSON, then parts on page bounds: layers, table, embedding, packed memory -------


def save_weights(packed: PackedWeights, path: Path, key: str) -> None:
    """Write a file for `load_weights`, down to the disk. The caller moves it to its name when it is complete."""
    base = packed.memory.address
    layers = b"".join(_moved(layer, -base) for layer in packed.layers)
    parts = [memoryview(layers), memoryview(_moved(packed.table, -base))]
    parts += [_bytes_of(packed.embedding), _bytes_of(packed.memory.bytes[: packed.memory.used])]
    header = {
        "key": _full_key(key, packed.dtype, packed.library),
        "sizes": [len(part) for part in parts],
        "shape": list(packed.embedding.shape),
        "checksums": [[zlib.crc32(chunk) for chunk in _chunks(part)] for part in parts],
    }
    with path.open("wb") as file:
        text = json.dumps(header).encode()
        file.write(b"%08x %b\n" % (zlib.crc32(text), text))
        for part in parts:
            file.seek(round_up(file.tell(), _PAGE))
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def load_weights(path: Path, key: str, dtype: str, level: str | None = None) -> PackedWeights:
    """The weights of a file that `save_weights` wrote with the same key and dtype for the same instruction set.

    Raises StaleWeights for any other file, and for one whose content has changed since; the embedding, which is mapped
    and not read, is not checked. FileNotFoundError when there is none.
    """
    library = load_library(level)
    with path.open("rb") as file:
        header = _read_header(file, path)
        if header["key"] != _full_key(key, dtype, library):
            raise StaleWeights(f"{path} holds the weights of another model, or of an older version.")
        starts = _part_starts(file.tell(), header["sizes"])
        if os.fstat(file.fileno()).st_size != starts[-1] + header["sizes"][-1]:
            raise StaleWeights(f"{path} is not complete.")
        layers, table, memory = (_read_part(file, path, header, starts, part) for part in (0, 1, 3))
        embedding = _map_part(file, starts[2], header["sizes"][2]).view(kv_dtype(dtype)).view(header["shape"])
    return PackedWeights(
        library,
        dtype,
        memory,
        embedding,
        [_placed(structs.Layer.from_buffer_copy(raw), memory.address) for raw in _records(layers)],
        _placed(Table.from_buffer_copy(table.bytes.numpy().data), memory.address),
    )


def _full_key(key: str, dtype: str, library: Library) -> str:
    """The library is part of it, because its panels are its own: another build, another file."""
    return f"{key} {dtype} {library.level} {library.build:08x} {LAYOUT_VERSION}"


def _read_header(file: BinaryIO, path: Path) -> dict[str, Any]:
    checksum, _, text = file.readline(_LONGEST_HEADER).rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise StaleWeights(f"{path} is damaged, or no file of packed weights.")
    header: dict[str, Any] = json.loads(text)
    return header


def _part_starts(position: int, sizes: Sequence[int]) -> list[int]:
    starts = []
    for size in sizes:
        starts.append(round_up(position, _PAGE))
        position = starts[-1] + size
    return starts


def _read_part(file: BinaryIO, path: Path, header: dict[str, Any], starts: Sequence[int], part: int) -> Memory:
    """Read and check in two threads: both are faster than one core."""
    memory = Memory(header["sizes"][part])
    memory.take(header["sizes"][part])
    view = _bytes_of(memory.bytes[: header["sizes"][part]])

    def read(index: int) -> int:
        chunk = view[index * _CHUNK : (index + 1) * _CHUNK]
        os.preadv(file.fileno(), [chunk], starts[part] + index * _CHUNK)
        return zlib.crc32(chunk)

    expected = header["checksums"][part]
    with ThreadPoolExecutor(2) as pool:
        if list(pool.map(read, range(len(expected)))) != expected:
            raise StaleWeights(f"{path} is damaged.")
    return memory


def _map_part(file: BinaryIO, start: int, size: int) -> Tensor:
    # private and writable, because torch warns of tensors that cannot be written; nothing writes
    mapping = mmap.mmap(
        file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=start
    )
    return torch.frombuffer(mapping, dtype=torch.uint8)


def _chunks(part: memoryview) -> Iterator[memoryview]:
    return (part[start : start + _CHUNK] for start in range(0, len(part), _CHUNK))


def _bytes_of(values: Tensor) -> memoryview:
    return values.contiguous().view(-1).view(torch.uint8).numpy().data


def _records(layers: Memory) -> Iterator[bytes]:
    size = ctypes.sizeof(structs.Layer)
    raw = layers.bytes[: layers.used].numpy().tobytes()
    return (raw[start : start + size] for start in range(0, len(raw) // size * size, size))


def _moved(struct: Any, offset: int) -> bytes:
    """The struct's bytes with `offset` added to its addresses."""
    return bytes(_placed(type(struct).from_buffer_copy(struct), offset))


def _placed(struct: Any, offset: int) -> Any:
    """The struct itself, `offset` added to all addresses in it that are not null."""
    for name, kind in struct._fields_:
        if kind is structs.Pointer:
            address = getattr(struct, name)
            setattr(struct, name, None if address is None else address + offset)
        elif issubclass(kind, ctypes.Structure):
            _placed(getattr(struct, name), offset)
    return struct
