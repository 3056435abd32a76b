"""A StepBatch without a scheduler: sequences side by side, each attending to itself. For self-tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.step import AttentionPlan, StepBatch


class Part(NamedTuple):
    """New tokens of one sequence, and the slots of all its tokens up to the last new one."""

    tokens: NDArray[np.int32]
    slots: NDArray[np.int32]  # [cached + new]


def plain_batch(parts: Sequence[Part], *, last_only: bool = False) -> StepBatch:
    """Extend every sequence by its tokens. Logits of all rows, or of each sequence's last."""
    counts = np.array([len(part.tokens) for part in parts], np.int32)
    lengths = np.array([len(part.slots) for part in parts], np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    cached = lengths - counts
    key_starts = np.cumsum(lengths, dtype=np.int32) - lengths
    items = np.stack([ends - counts, counts, key_starts, lengths, cached, np.zeros_like(counts)], axis=1)
    return StepBatch(
        tokens=np.concatenate([part.tokens for part in parts]),
        positions=np.concatenate([np.arange(c, n, dtype=np.int32) for c, n in zip(cached, lengths, strict=True)]),
        slots=np.concatenate([part.slots[c:] for c, part in zip(cached, parts, strict=True)]),
        logit_rows=ends - 1 if last_only else np.arange(ends[-1], dtype=np.int32),
        plan=AttentionPlan(np.concatenate([part.slots for part in parts]), items),
    )
