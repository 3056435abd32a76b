"""Requests by hand: token lists with slots, packed into StepBatches without a scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lmprog_runtime.step import ALL_KEYS, AttentionPlan, StepBatch


@dataclass
class Stream:
    """Tokens that have been computed, and the slots that hold their K and V."""

    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def fork(self) -> Stream:
        return Stream(list(self.tokens), list(self.slots))


class Packer:
    """Hands out slots, in a scattered order unless told otherwise, and packs work into steps, rows in the order of the
    work."""

    def __init__(self, num_slots: int, seed: int = 0, *, in_order: bool = False) -> None:
        self._free = list(range(num_slots) if in_order else np.random.default_rng(seed).permutation(num_slots))

    def take(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        assert len(taken) == count
        return [int(slot) for slot in taken]

    def step(
        self, work: Iterable[tuple[Stream, Sequence[int]]], *, shared: int = 0, logit_rows: Sequence[int] | None = None
    ) -> StepBatch:
        """Extend each stream by its tokens. With `shared`, the first `shared` tokens of all streams are one item over
        all rows (cascade). Logits of all rows unless `logit_rows` says otherwise."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        items: list[tuple[int, ...]] = []
        key_slots: list[int] = []
        for stream, new in work:
            taken = self.take(len(new))
            cached = len(stream.tokens)
            row, shared_slots = len(tokens), stream.slots[:shared]
            stream.tokens += new
            stream.slots += taken
            items.append((row, len(new), len(key_slots), len(stream.slots) - shared, cached - shared, shared))
            key_slots += stream.slots[shared:]
            tokens += new
            positions += range(cached, cached + len(new))
            slots += taken
        if shared:
            items.append((0, len(tokens), len(key_slots), shared, ALL_KEYS, 0))
            key_slots += shared_slots
        return _batch(tokens, positions, slots, items, key_slots, logit_rows)

    def trie(self, prefix: Stream, tokens: Sequence[int], parents: Sequence[int]) -> StepBatch:
        """A token trie in depth-first preorder after `prefix` (parent -1: its end), in scratch slots; one item per node
        for the node itself and each of its unary ancestors' runs, and one for the prefix over all rows."""
        slots = self.take(len(tokens))
        items: list[tuple[int, ...]] = [(0, len(tokens), 0, len(prefix.slots), ALL_KEYS, 0)]
        key_slots = list(prefix.slots)
        depth: list[int] = []
        for node, parent in enumerate(parents):
            depth.append(0 if parent < 0 else depth[parent] + 1)
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            items.append((node, 1, len(key_slots), len(path), len(path) - 1, len(prefix.slots)))
            key_slots += [slots[n] for n in path]
        positions = [len(prefix.tokens) + d for d in depth]
        return _batch(tokens, positions, slots, items, key_slots, None)


def _batch(
    tokens: Sequence[int],
    positions: Sequence[int],
    slots: Sequence[int],
    items: Sequence[tuple[int, ...]],
    key_slots: Sequence[int],
    logit_rows: Sequence[int] | None,
) -> StepBatch:
    wanted = range(len(tokens)) if logit_rows is None else logit_rows
    plan = AttentionPlan(np.array(key_slots, np.int32), np.array(items, np.int32))
    arrays = (np.array(values, np.int32) for values in (tokens, positions, slots, wanted))
    return StepBatch(*arrays, plan=plan)
