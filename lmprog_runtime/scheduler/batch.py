"""From chunks of sequences to the flat arrays of a step."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

import numpy as np

from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.slots import Slots
from lmprog_runtime.scheduler.cascade import SharedPart
from lmprog_runtime.scheduler.chunk import Chunk
from lmprog_runtime.scheduler.sequence import Sequence
from lmprog_runtime.step import ALL_KEYS, ITEM_FIELDS, AttentionPlan, StepBatch

_KEY_START, _KEY_COUNT, _KEY_POSITION = map(ITEM_FIELDS.index, ("key_start", "key_count", "key_position"))
_ROOM = np.zeros(64, np.int32)  # behind the keys of a decode, for those of the steps to come


class StepOutput(NamedTuple):
    """logits[row_start : row_start + row_count] belong to entries first_position, first_position + 1, ... of the
    sequence: positions of its tokens; for a token tree, entry prompt_length + i is node i."""

    sequence: Sequence
    first_position: int
    row_start: int
    row_count: int


class ScheduledStep(NamedTuple):
    batch: StepBatch  # its arrays may be those of the next step as well
    outputs: list[StepOutput]
    chunks: list[Chunk]


def build_step(chunks: list[Chunk], shared: Items[SharedPart] = ()) -> ScheduledStep:
    """At least one chunk; their slots are allocated. `shared` parts nest, outer ones first."""
    arrays = _Arrays()
    outputs = [output for chunk in chunks if (output := arrays.add_rows(chunk)) is not None]
    private = [0] * len(chunks)  # from where on a chunk attends on its own
    for part in shared:
        arrays.add_shared(chunks, part)
        private[part.first : part.last] = [part.high] * (part.last - part.first)
    for index, chunk in enumerate(chunks):
        arrays.add_private(index, chunk, private[index])
    return ScheduledStep(arrays.batch(), outputs, chunks)


class DecodeSteps:
    """Steps of one token for each of the same sequences, while shared parts and slots of earlier tokens stay the same.

    They share their arrays, into which each writes what is new: a sequence's key goes into the room behind its others.
    That is done through memoryviews, since a function of numpy that the caches have lost takes 10 us.
    """

    def __init__(self, first: ScheduledStep, chunks: list[Chunk]) -> None:
        """All are decodes, and all have an output. `chunks`: in the order in which `follow` gets them."""
        self._batch, self._steps_left = first.batch, len(_ROOM)
        self._sequences = [chunk.sequence for chunk in chunks]
        place = {sequence: index for index, sequence in enumerate(self._sequences)}
        self._order = [place[chunk.sequence] for chunk in first.chunks]
        self._rows: list[Row] = []
        for chunk in first.chunks:
            assert chunk.sequence.row is not None
            self._rows.append(chunk.sequence.row)
        tokens, positions, slots, _, (keys, items) = first.batch
        self._tokens, self._positions, self._slots = tokens.data, positions.data, slots.data
        self._keys, self._items = keys.data, items.reshape(-1).data
        own = items[-len(self._rows) :]
        self._lows: list[int] = own[:, _KEY_POSITION].tolist()
        self._key_starts: list[int] = own[:, _KEY_START].tolist()
        self._counts_at = range(items.size - own.size + _KEY_COUNT, items.size, len(ITEM_FIELDS))  # in `_items`

    def follow(self, chunks: list[Chunk]) -> ScheduledStep | None:
        """The next step; None when it is of another kind, or must be built anew."""
        if not self._steps_left or [sequence for sequence, _, _ in chunks] != self._sequences:
            return None
        ordered = [chunks[index] for index in self._order]
        outputs = [
            StepOutput(sequence, start, index, 1)
            for index, (sequence, start, end) in enumerate(ordered)
            if sequence.wanted <= start == end - 1
        ]
        if len(outputs) < len(ordered):
            return None
        self._steps_left -= 1
        for index, (sequence, start, end) in enumerate(ordered):
            self._tokens[index] = sequence.token_ids[start]
            self._positions[index] = start
            low, slot = self._lows[index], self._rows[index].slot(start)
            self._slots[index] = self._keys[self._key_starts[index] + start - low] = slot
            self._items[self._counts_at[index]] = end - low
        return ScheduledStep(self._batch, outputs, ordered)


class _Arrays:
    """The parts of a step, collected chunk by chunk."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._positions: list[int] = []
        self._slots: list[Slots] = []
        self._logit_rows: list[int] = []
        self._key_slots: list[Slots] = []
        self._keys = 0
        self._items: list[int] = []
        self._first_row: list[int] = [0]  # of each chunk, and one past the last

    def batch(self) -> StepBatch:
        return StepBatch(
            np.array(self._tokens, dtype=np.int32),
            np.array(self._positions, dtype=np.int32),
            np.concatenate(self._slots),
            np.array(self._logit_rows, dtype=np.int32),
            AttentionPlan(
                np.concatenate(self._key_slots),
                np.array(self._items, dtype=np.int32).reshape(-1, len(ITEM_FIELDS)),
            ),
        )

    def add_rows(self, chunk: Chunk) -> StepOutput | None:
        sequence, start, end = chunk
        assert sequence.row is not None
        length = len(sequence.token_ids)
        self._tokens += sequence.token_ids[start:end]
        self._positions += range(start, min(end, length))
        self._slots.append(sequence.row.span(start, end))
        if end > length:
            assert sequence.tree is not None
            assert sequence.trie is not None
            first = max(start - length, 0)
            self._tokens += sequence.tree.tokens[first : end - length]
            self._positions += [length + depth for depth in sequence.trie.depths[first : end - length]]
        self._first_row.append(len(self._tokens))
        return self._add_logits(chunk)

    def _add_logits(self, chunk: Chunk) -> StepOutput | None:
        sequence, start, end = chunk
        first = max(start, sequence.wanted)
        if first >= end:
            return None
        output = StepOutput(sequence, first, len(self._logit_rows), end - first)
        row = len(self._tokens) - end
        self._logit_rows += range(row + first, row + end)
        return output

    def add_shared(self, chunks: list[Chunk], part: SharedPart) -> None:
        """One item over the rows of several chunks. If one of them computes a piece of it now, it is the first."""
        leader = chunks[part.first]
        row, last_row = self._first_row[part.first], self._first_row[part.last]
        self._causal(row, last_row - row, leader, part.low, part.high)

    def add_private(self, index: int, chunk: Chunk, low: int) -> None:
        """The rest of the prefix, causal, seen by all rows of the chunk; then the runs of its token tree."""
        sequence, start, end = chunk
        length = len(sequence.token_ids)
        row = self._first_row[index]
        if low < min(end, length):
            self._causal(row, end - start, chunk, low, min(end, length))
        if chunk.is_decode:
            self._key_slots.append(_ROOM)
            self._keys += len(_ROOM)
        if end > length:
            self._add_trie(chunk, row)

    def _causal(self, row: int, row_count: int, chunk: Chunk, low: int, high: int) -> None:
        """Keys at positions [low, high) of the chunk's sequence; `row` is at the chunk's first position."""
        assert chunk.sequence.row is not None
        skipped = max(0, low - chunk.start)  # rows before the first key
        first = chunk.start + skipped
        self._item(row + skipped, row_count - skipped, chunk.sequence.row.span(low, high), first - low, low)

    def _add_trie(self, chunk: Chunk, row: int) -> None:
        sequence, start, end = chunk
        assert sequence.trie is not None
        assert sequence.row is not None
        length = len(sequence.token_ids)
        for run in sequence.trie.runs:
            first, last = length + run.first, min(length + run.last, end)
            low, high = max(start, first), min(end, length + run.subtree_end)
            if low < high:
                keys = sequence.row.span(first, last)
                self._item(row + low - start, high - low, keys, low - first, length + run.depth)

    def _item(self, row: int, row_count: int, keys: Slots, diagonal: int, position: int) -> None:
        count = len(keys)
        sees_all = diagonal >= count - 1
        self._items += (row, row_count, self._keys, count, ALL_KEYS if sees_all else diagonal, position)
        self._key_slots.append(keys)
        self._keys += count
