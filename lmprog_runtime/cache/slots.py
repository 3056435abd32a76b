"""Who has which slot of the KV pool: a free list of extents that hands out contiguous runs.

Runs matter: attention reads a contiguous run at up to twice the bandwidth of scattered slots. Knows nothing of tokens.
All counts are multiples of the page size, hence so are all extents, and pages stay contiguous without further care.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int32]
_FREE, _TAKEN = b"\0", b"\1"


class SlotAllocator:
    """Free extents, keyed by both ends for O(1) merging and by power-of-two size class for O(1) search."""

    def __init__(self, num_slots: int, *, debug_owners: bool = False) -> None:
        self.num_slots = num_slots
        self._taken = bytearray(num_slots)
        self._length: dict[int, int] = {}  # first slot of a free extent -> its length
        self._first: dict[int, int] = {}  # one past its last slot -> first slot
        self._classes: list[dict[int, None]] = [{} for _ in range(num_slots.bit_length() + 1)]
        self._owners: list[object] | None = [None] * num_slots if debug_owners else None
        self.free_count = 0
        self._insert(0, num_slots)

    def allocate(self, count: int, owner: object, after: int = -2) -> Slots:
        """`count` slots in as few runs as the free extents allow, the first right behind slot `after` if it is free.
        The caller has made sure that there are enough."""
        assert count <= self.free_count, f"{count} slots asked of {self.free_count} free ones"
        first = after + 1 if after + 1 in self._length else self._fit(count)
        run = self._take(first, count) if self._length[first] >= count else self._gather(first, count)
        self.transfer(run, owner)
        return run

    def free(self, slots: Slots, owner: object) -> None:
        """Give slots back. A slot that is free already is a bug of the caller: the error names who freed it before."""
        if self._owners is not None:
            self._check_owner(slots, owner)
        breaks = np.flatnonzero(np.diff(slots) != 1) + 1
        bounds = [0, *breaks.tolist(), len(slots)]
        for low, high in pairwise(bounds):
            if high > low:
                self._release(int(slots[low]), high - low, owner)

    def transfer(self, slots: Slots, owner: object) -> None:
        """Change of owner; kept in debug mode only."""
        if self._owners is not None:
            for slot in slots.tolist():
                self._owners[slot] = owner

    def owner(self, slot: int) -> object:
        """None unless in debug mode."""
        return self._owners[slot] if self._owners is not None else None

    def free_slots(self) -> Slots:
        return np.flatnonzero(np.frombuffer(self._taken, dtype=np.uint8) == 0).astype(np.int32)

    def extents(self) -> dict[int, int]:
        """First slot and length of each free extent."""
        return dict(self._length)

    def _fit(self, count: int) -> int:
        """First slot of a free extent of at least `count`; of the largest class when there is none."""
        wanted = count.bit_length()
        for first in self._classes[wanted]:  # half of the class may be too small; look at a few only
            if self._length[first] >= count:
                return first
            break
        for extents in self._classes[wanted + 1 :]:
            if extents:
                return next(iter(extents))
        return next(next(iter(extents)) for extents in reversed(self._classes) if extents)

    def _gather(self, first: int, count: int) -> Slots:
        runs = []
        while count:
            taken = min(count, self._length[first])
            runs.append(self._take(first, taken))
            count -= taken
            if count:
                first = self._fit(count)
        return np.concatenate(runs)

    def _take(self, first: int, count: int) -> Slots:
        length = self._length[first]
        self._remove(first, length)
        if count < length:
            self._insert(first + count, length - count)
        self._taken[first : first + count] = _TAKEN * count
        return np.arange(first, first + count, dtype=np.int32)

    def _release(self, first: int, count: int, owner: object) -> None:
        clash = self._taken.find(_FREE, first, first + count)
        if clash >= 0:
            before = " that is free already" if self._owners is None else f", which {self.owner(clash)} freed before"
            raise AssertionError(f"{owner} frees slot {clash}{before}; this is a bug in lmprog.")
        self._taken[first : first + count] = _FREE * count
        if self._owners is not None:
            self._owners[first : first + count] = [owner] * count
        if (left := self._first.get(first)) is not None:
            size = first - left
            self._remove(left, size)
            first, count = left, count + size
        if (size_right := self._length.get(first + count)) is not None:
            self._remove(first + count, size_right)
            count += size_right
        self._insert(first, count)

    def _insert(self, first: int, length: int) -> None:
        self._length[first] = length
        self._first[first + length] = first
        self._classes[length.bit_length()][first] = None
        self.free_count += length

    def _remove(self, first: int, length: int) -> None:
        del self._length[first], self._first[first + length], self._classes[length.bit_length()][first]
        self.free_count -= length

    def _check_owner(self, slots: Slots, owner: object) -> None:
        assert self._owners is not None
        for slot in slots.tolist():
            if self._taken[slot] and self._owners[slot] is not owner:
                raise AssertionError(f"{owner} frees slot {slot} of {self._owners[slot]}; this is a bug in lmprog.")
