"""The weights of a GGUF file: as they are stored, where matrices in groups of 32 inputs stay integers, or as floats.

A matrix is read when it is asked for, and not kept. Q4_0, Q4_1 and Q8_0 stay exactly what they are. The scales and
minima of Q4_K, products of two numbers there, are rounded to float16. Every other kind, and what is made of parts of
several kinds, is computed and becomes 8 bit. Source of the blocks' layout: ggml's ggml-common.h and
dequantize_row_q4_K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.gguf_convert import GgufFile, GgufTensor, split_rotary_pairs
from lmprog_runtime.model.model_spec import ModelSpec
from lmprog_runtime.model.weights import ModelWeights
from lmprog_runtime.ops.native import GroupedMatrix, Matrix, concatenate

Blocks = NDArray[np.uint8]  # [outputs, blocks, bytes of a block]


@dataclass(frozen=True)
class StoredLayer:
    """As LayerWeights, with matrices that are made when they are asked for."""

    make: Callable[[str], Matrix]  # a matrix by its name in LayerWeights
    input_norm: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output_bias: Tensor | None
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    mlp_post_norm: Tensor | None

    @property
    def qkv(self) -> Matrix:
        return self.make("qkv")

    @property
    def output(self) -> Matrix:
        return self.make("output")

    @property
    def gate_up(self) -> Matrix:
        return self.make("gate_up")

    @property
    def down(self) -> Matrix:
        return self.make("down")


class GgufWeights:
    """The tensors of a GGUF file for one spec, for the native decoder. `as_stored`: keep quantised matrices so."""

    def __init__(self, file: GgufFile, spec: ModelSpec, *, as_stored: bool) -> None:
        self._tensors = GgufTensors(file)
        self._spec, self._as_stored = spec, as_stored
        self._floats = ModelWeights(self._tensors, spec)  # checks names and shapes

    def embedding(self) -> Tensor:
        return self._floats.embedding()

    def head(self) -> Matrix:
        return self._join([self._floats.head_name])

    def final_norm(self) -> Tensor:
        return self._floats.final_norm()

    def layer(self, index: int) -> StoredLayer:
        return StoredLayer(partial(self._matrix, index), **self._floats.vectors(index))

    def _matrix(self, index: int, part: str) -> Matrix:
        matrix = self._join(self._floats.matrix_names(index)[part])
        if part == "output" and self._spec.head_dim % 32:  # the decoder pads heads: inputs change their group
            return _to_float(matrix)
        return matrix

    def _join(self, names: Sequence[str]) -> Matrix:
        read = self._tensors.matrix if self._as_stored else self._tensors.get
        parts = [read(name) for name in names]
        if len(parts) == 1:
            return parts[0]
        grouped = [part for part in parts if isinstance(part, GroupedMatrix)]
        if len(grouped) == len(parts) and len({part.dtype for part in grouped}) == 1:
            return concatenate(grouped)
        return torch.cat([_to_float(part) for part in parts])


def open_gguf_weights(path: Path, spec: ModelSpec, *, as_stored: bool) -> GgufWeights:
    """Raises ModelUnsupported when the file does not fit the spec, or has nothing quantised to use as stored."""
    file = GgufFile(path)
    if as_stored and not file.is_quantised:
        raise ModelUnsupported(f"{path} has no quantised weights to use as they are; take dtype='bfloat16'.")
    return GgufWeights(file, spec, as_stored=as_stored)


class GgufTensors:
    """What TensorFiles is for safetensors, and each matrix as it is stored."""

    def __init__(self, file: GgufFile) -> None:
        self._by_name = {tensor.name: tensor for tensor in file.tensors}

    def names(self) -> set[str]:
        return set(self._by_name)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._by_name[name].shape

    def get(self, name: str) -> Tensor:
        return torch.from_numpy(self._by_name[name].floats())

    def matrix(self, name: str) -> Matrix:
        tensor = self._by_name[name]
        if tensor.kind not in _READERS:
            return self.get(name)
        grouped = _read_groups(tensor)
        if not tensor.heads:
            return grouped
        return grouped.map(lambda rows: torch.from_numpy(split_rotary_pairs(rows.numpy(), tensor.heads)))


def _to_float(matrix: Matrix) -> Tensor:
    return matrix.to_float() if isinstance(matrix, GroupedMatrix) else matrix


def _read_groups(tensor: GgufTensor) -> GroupedMatrix:
    size, read = _READERS[tensor.kind]
    rows = tensor.shape[0]
    integers, scales, minima = read(tensor.raw().reshape(rows, -1, size))
    return GroupedMatrix(
        torch.from_numpy(integers.reshape(rows, -1)),
        torch.from_numpy(scales.reshape(rows, -1)),
        None if minima is None else torch.from_numpy(minima.reshape(rows, -1)),
    )


_Groups = tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16] | None]


def _halves(blocks: Blocks) -> NDArray[np.float16]:
    """[outputs, blocks, count] of the bytes of float16 numbers"""
    return np.ascontiguousarray(blocks).view(np.float16)


def _nibbles(packed: Blocks) -> NDArray[np.uint8]:
    """All low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _q4_0(blocks: Blocks) -> _Groups:
    scales = _halves(blocks[..., :2])
    return _nibbles(blocks[..., 2:]), scales, np.float16(-8) * scales


def _q4_1(blocks: Blocks) -> _Groups:
    return _nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4])


def _q8_0(blocks: Blocks) -> _Groups:
    return blocks[..., 2:] ^ np.uint8(0x80), _halves(blocks[..., :2]), None


def _q4_k(blocks: Blocks) -> _Groups:
    """256 inputs: a scale and a minimum, and 6 bits for each of them in 8 groups; two groups share bytes of nibbles."""
    scale, minimum = (_halves(blocks[..., at : at + 2]).astype(np.float32) for at in (0, 2))
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    integers = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return integers, (scale * scales).astype(np.float16), (-minimum * minima).astype(np.float16)


_READERS: dict[str, tuple[int, Callable[[Blocks], _Groups]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
}
"""kind -> (bytes of a block, how to read blocks)"""
