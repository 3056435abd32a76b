"""The slots of one live sequence, in order of position."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from lmprog_runtime.cache.slots import Slots

if TYPE_CHECKING:
    from lmprog_runtime.cache.node import Node

_serials = count()


class Row:
    """Slot i holds the KV of position i. `node` is locked and ends at `shared`.

    # [0, shared)          the tree's slots, kept alive by the lock on `node`: not ours to free
    # [shared, allocated)  ours
    """

    __slots__ = ("_slots", "allocated", "node", "priority", "serial", "shared")

    def __init__(self, node: Node, prefix: Slots, priority: int = 0) -> None:
        self.node = node
        self.shared = self.allocated = len(prefix)
        self._slots = prefix
        self.priority = priority  # of its request
        self.serial = next(_serials)

    @property
    def slots(self) -> Slots:
        """[allocated] slot ids; a view."""
        return self._slots[: self.allocated]

    def span(self, low: int, high: int) -> Slots:
        """Those of positions [low, high), all allocated; a view."""
        return self._slots[low:high]

    def slot(self, position: int) -> int:
        """That of an allocated position."""
        return self._slots.item(position)

    @property
    def held(self) -> int:
        """Slots that only this row has."""
        return self.allocated - self.shared

    def extend(self, slots: Slots) -> None:
        end = self.allocated + len(slots)
        if end > len(self._slots):
            bigger = np.empty(max(end, 2 * len(self._slots)), dtype=np.int32)
            bigger[: self.allocated] = self._slots[: self.allocated]
            self._slots = bigger
        self._slots[self.allocated : end] = slots
        self.allocated = end

    def shrink(self, length: int) -> Slots:
        """Cut to `length` slots; returns those cut off, which the caller frees."""
        cut: Slots = self._slots[length : self.allocated].copy()
        self.allocated = length
        return cut

    def __repr__(self) -> str:
        return f"row {self.serial}"
