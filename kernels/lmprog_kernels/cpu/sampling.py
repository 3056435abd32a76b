"""Tokens and log-probabilities from rows of logits, all rows in one native call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmprog_kernels.cpu.library import Library, check
from lmprog_kernels.cpu.structs import SampleRow, ScoreRow

Span = tuple[int, int]  # address and length of an array
Top = tuple[tuple[int, float], ...]


class ParamsLike(Protocol):
    """lmprog_runtime's SamplingParams says what each does."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...
    @property
    def repetition_penalty(self) -> float: ...
    @property
    def frequency_penalty(self) -> float: ...
    @property
    def presence_penalty(self) -> float: ...
    @property
    def logit_bias(self) -> Mapping[int, float]: ...
    @property
    def logprobs(self) -> bool: ...
    @property
    def top_logprobs(self) -> int: ...


class RowState:
    """One request's row: what stays the same from step to step, and what is set before each. `struct.token` is what the
    last `sample` chose; -1: no allowed token has a finite logit, or one is not a number."""

    def __init__(self, params: ParamsLike, vocab_size: int, sequence: int) -> None:
        """`sequence`: 64 bits that tell which random numbers the request draws."""
        num_top = min(params.top_logprobs, vocab_size)
        self._bias_ids = np.array(list(params.logit_bias), np.int32)
        self._biases = np.array(list(params.logit_bias.values()), np.float32)
        self._top_ids, self._top_logprobs = (ctypes.c_int32 * num_top)(), (ctypes.c_float * num_top)()
        self.mask: NDArray[np.uint32] | None = None
        self.struct = SampleRow(
            bias_ids=self._bias_ids.ctypes.data,
            biases=self._biases.ctypes.data,
            num_biases=len(self._bias_ids),
            top_ids=ctypes.addressof(self._top_ids),
            top_logprobs=ctypes.addressof(self._top_logprobs),
            num_top=num_top,
            sequence=sequence,
            wants_logprob=params.logprobs or num_top > 0,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            temperature=params.temperature,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
        )
        self.address = ctypes.addressof(self.struct)
        self.vocab_size = vocab_size
        self.draws = params.temperature > 0  # number `struct.draw`, counted by the caller
        self.wants_logprob = bool(self.struct.wants_logprob)

    def set_mask(self, mask: NDArray[np.uint32] | None) -> None:
        """Tokens allowed in this step, as bits; None: all."""
        self.mask = None if mask is None else np.ascontiguousarray(mask, np.uint32)
        self.struct.mask = None if self.mask is None else self.mask.ctypes.data
        self.struct.mask_words = 0 if self.mask is None else len(self.mask)

    def set_penalised(self, seen_ids: Span, count_ids: Span, counts: Span) -> None:
        """int32, int32 and float32; see `LmkSampleRow`. They must stay where they are until the draw."""
        row = self.struct
        row.seen_ids, row.num_seen = seen_ids
        row.count_ids, row.num_counts = count_ids
        row.counts = counts[0]

    def logprobs(self) -> tuple[float, Top]:
        """Of the token that the last `sample` chose, and of the likeliest ones; if `wants_logprob`."""
        count = self.struct.found_top
        return self.struct.logprob, tuple(zip(self._top_ids[:count], self._top_logprobs[:count], strict=True))


class Scored(NamedTuple):
    logprob: float
    top: Top


class NativeSampler:
    def __init__(self, library: Library) -> None:
        self._functions = library.functions

    def sample(self, logits: Tensor, states: Sequence[RowState], threads: int) -> None:
        """Choose a token for each row, at least one, of contiguous logits float32 [len(states), the
        vocab_size of all states]; see `RowState`."""
        rows = array("Q", [state.address for state in states])
        vocab_size = states[0].vocab_size  # the tensor knows it, but asking one takes 30 us with caches full of weights
        status = self._functions.lmk_sample(logits.data_ptr(), rows.buffer_info()[0], len(states), vocab_size, threads)
        check(status)

    def score(self, logits: Tensor, token_ids: Sequence[int], top: int, threads: int) -> list[Scored]:
        """The log-probability of token_ids[i] under logits[i] and the `top` best; logits as for `sample`."""
        count, vocab_size = logits.shape
        top = min(top, vocab_size)
        ids, logprobs = np.empty((count, max(1, top)), np.int32), np.empty((count, max(1, top)), np.float32)
        rows = (ScoreRow * count)()
        for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True)):
            row.logits = logits.data_ptr() + index * vocab_size * 4
            row.top_ids, row.top_logprobs = ids.ctypes.data + index * top * 4, logprobs.ctypes.data + index * top * 4
            row.token, row.num_top = token_id, top
        check(self._functions.lmk_score_tokens(rows, count, vocab_size, threads))
        pairs = zip(
            ids.reshape(-1)[: count * top].reshape(count, top).tolist(),
            logprobs.reshape(-1)[: count * top].reshape(count, top).tolist(),
            strict=True,
        )
        return [
            Scored(row.logprob, tuple(zip(top_ids, values, strict=True))[: row.found_top])
            for row, (top_ids, values) in zip(rows, pairs, strict=True)
        ]
