"""What the engine needs of a model: one call per step. And the choice between the implementations."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmprog_runtime.step import StepBatch

ExecutorKind = Literal["auto", "cpu", "torch", "hf"]


class Executor(Protocol):
    """A loaded model with its KV pool. One thread at a time."""

    name: str  # "cpu", "torch" or "hf"
    vocab_size: int  # columns of the logits
    context_length: int  # tokens; positions must be below it
    num_slots: int  # slots of the KV pool, 0 to num_slots - 1
    device: str
    dtype: str  # of weights and KV: "float32", "bfloat16", ...

    def step(self, batch: StepBatch) -> Tensor:
        """Store the K and V of every row, attend as the plan says. Returns float32 [len(logit_rows), vocab_size]."""
        ...

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        """[len(slots), bytes per slot]: all layers' K and V of each slot, as raw bytes that `write_kv` takes back."""
        ...

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        """Fill slots with what `read_kv` of an executor of the same model and dtype gave."""
        ...
