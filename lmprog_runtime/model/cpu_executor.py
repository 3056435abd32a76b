"""The CPU executor: every step is one call into C++. For all models that have a `ModelSpec`."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmprog_runtime.errors import ModelUnsupported
from lmprog_runtime.model.model_spec import ModelSpec
from lmprog_runtime.model.weights import ModelWeights
from lmprog_runtime.ops.native import NATIVE_DTYPES, NativeDecoder, PackedWeights, PreparedStep, pack_weights
from lmprog_runtime.step import StepBatch

_KEPT_LOGITS = 1 << 22  # 16 MB


class CpuExecutor:
    """See `Executor`. `dtype`: "float32", "bfloat16", "int8", "int4" or "gguf", of the weights (see `pack_weights`).

    Raises ModelUnsupported for another one, and NativeUnavailable where the library was not built or the processor is
    not one it can run on.
    """

    name = "cpu"
    device = "cpu"

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights | PackedWeights,
        *,
        num_slots: int,
        dtype: str = "bfloat16",
        threads: int | None = None,
        int8_kv: bool = False,
        level: str | None = None,
    ) -> None:
        """`weights`: packed ones must be of `dtype`. `threads`: default all cores this process may use. `int8_kv`: the
        pool in int8, whatever `dtype`. `level`: the instruction set, for tests."""
        check_native_dtype(dtype)
        self.spec, self.dtype, self.num_slots = spec, dtype, num_slots
        self.vocab_size, self.context_length = spec.vocab_size, spec.context_length
        count = threads or len(os.sched_getaffinity(0))
        self.packed = weights if isinstance(weights, PackedWeights) else pack_weights(spec, weights, dtype, level)
        self.decoder = NativeDecoder(spec, self.packed, num_slots=num_slots, threads=count, int8_kv=int8_kv)
        self._batch: StepBatch | None = None  # the last one
        self._prepared: PreparedStep | None = None  # for it
        self.kv_dtype = str(self.decoder.kv_dtype).removeprefix("torch.")

    def step(self, batch: StepBatch) -> Tensor:
        """A batch that comes again, its arrays with new contents, gets its logits in the same tensor: making one, and
        asking arrays for their addresses, takes 60 us with caches full of weights."""
        if self._prepared is None or batch is not self._batch:
            self._batch, self._prepared = batch, None  # the logits' memory is free again, unless somebody holds them
            *arrays, plan = batch
            self._prepared = self.decoder.prepare(*arrays, *plan)
        logits = self.decoder.run(self._prepared)
        if logits.numel() > _KEPT_LOGITS:
            self._prepared = None
        return logits

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        return np.ascontiguousarray(self.decoder.kv[:, slots].swapaxes(0, 1)).reshape(len(slots), -1)

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        kv = self.decoder.kv
        kv[:, slots] = data.reshape(len(slots), kv.shape[0], kv.shape[2]).swapaxes(0, 1)


def check_native_dtype(dtype: str) -> None:
    """Raises ModelUnsupported."""
    known = (*NATIVE_DTYPES, "gguf")
    if dtype not in known:
        raise ModelUnsupported(f"The CPU executor has no dtype {dtype!r}; known: {', '.join(known)}.")
