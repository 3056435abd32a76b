"""From chunks of sequences to the flat arrays of a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lmprog_runtime.scheduler.sequence import Sequence
from lmprog_runtime.step import ALL_KEYS, ITEM_FIELDS, AttentionPlan, StepBatch


class Chunk(NamedTuple):
    """Entries [start, end) of a sequence, computed in this step."""

    sequence: Sequence
    start: int
    end: int


class StepOutput(NamedTuple):
    """logits[row_start : row_start + row_count] belong to entries first_position, first_position + 1, ... of the
    sequence: positions of its tokens; for a token tree, entry prompt_length + i is node i."""

    sequence: Sequence
    first_position: int
    row_start: int
    row_count: int


class ScheduledStep(NamedTuple):
    batch: StepBatch
    outputs: list[StepOutput]
    chunks: list[Chunk]


class _Arrays:
    """The parts of a step, collected chunk by chunk."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[np.ndarray] = []
        self.logit_rows: list[int] = []
        self.key_slots: list[np.ndarray] = []
        self.keys = 0
        self.items: list[tuple[int, int, int, int, int, int]] = []

    def item(self, row: int, row_count: int, key: int, key_count: int, diagonal: int, position: int) -> None:
        sees_all = diagonal >= key_count - 1
        self.items.append((row, row_count, key, key_count, ALL_KEYS if sees_all else diagonal, position))

    def batch(self) -> StepBatch:
        items = np.array(self.items, dtype=np.int32).reshape(-1, len(ITEM_FIELDS))
        return StepBatch(
            np.array(self.tokens, dtype=np.int32),
            np.array(self.positions, dtype=np.int32),
            np.concatenate(self.slots),
            np.array(self.logit_rows, dtype=np.int32),
            AttentionPlan(np.concatenate(self.key_slots), items),
        )


def build_step(chunks: list[Chunk]) -> ScheduledStep:
    """At least one chunk; their slots are allocated."""
    arrays, outputs = _Arrays(), []
    for chunk in chunks:
        output = _add_logits(arrays, chunk)
        if output is not None:
            outputs.append(output)
        _add_attention(arrays, chunk)
        _add_rows(arrays, chunk)
    return ScheduledStep(arrays.batch(), outputs, chunks)


def _add_rows(arrays: _Arrays, chunk: Chunk) -> None:
    sequence, start, end = chunk
    assert sequence.row is not None
    length = len(sequence.token_ids)
    arrays.tokens += sequence.token_ids[start:end]
    arrays.positions += range(start, min(end, length))
    arrays.slots.append(sequence.row.slots[start:end])
    if end > length:
        assert sequence.tree is not None
        assert sequence.trie is not None
        first = max(start - length, 0)
        arrays.tokens += sequence.tree.tokens[first : end - length]
        arrays.positions += [length + depth for depth in sequence.trie.depths[first : end - length]]


def _add_logits(arrays: _Arrays, chunk: Chunk) -> StepOutput | None:
    sequence, start, end = chunk
    first = max(start, sequence.wanted)
    if first >= end:
        return None
    output = StepOutput(sequence, first, len(arrays.logit_rows), end - first)
    row = len(arrays.tokens) - start
    arrays.logit_rows += range(row + first, row + end)
    return output


def _add_attention(arrays: _Arrays, chunk: Chunk) -> None:
    """The prefix, causal, seen by all rows; then the runs of the token tree."""
    sequence, start, end = chunk
    assert sequence.row is not None
    row, key = len(arrays.tokens), arrays.keys
    arrays.key_slots.append(sequence.row.slots[:end])
    arrays.keys += end
    length = len(sequence.token_ids)
    arrays.item(row, end - start, key, min(end, length), start, 0)
    if end > length:
        _add_trie(arrays, chunk, row, key)


def _add_trie(arrays: _Arrays, chunk: Chunk, row: int, key: int) -> None:
    sequence, start, end = chunk
    assert sequence.trie is not None
    length = len(sequence.token_ids)
    for run in sequence.trie.runs:
        first, last = length + run.first, min(length + run.last, end)
        low, high = max(start, first), min(end, length + run.subtree_end)
        if low < high:
            arrays.item(row + low - start, high - low, key + first, last - first, low - first, length + run.depth)
