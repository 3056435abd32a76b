"""The one step format of every executor: flat int32 arrays, and an attention plan.

Prefill, decode, mixed, chunked, forked and tree-packed work are all one `StepBatch`. Nothing here knows requests,
text or torch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]

ALL_KEYS = 2**30
"""`diagonal` of an item whose rows see every key of the item."""

ITEM_FIELDS = ("row_start", "row_count", "key_start", "key_count", "diagonal", "key_position")


class AttentionPlan(NamedTuple):
    """Which rows attend to which keys: a list of items, merged per row by log-sum-exp.

    Row i of an item (0 <= i < row_count, row `row_start + i` of the batch) sees key j (0 <= j < key_count, slot
    `key_slots[key_start + j]`) iff `j <= i + diagonal`. The keys of an item lie at consecutive positions, the first at
    `key_position`, so windows and cuts at absolute positions can be made from it. A row's keys over all items are
    disjoint, and every row sees at least its own slot. Causal extend of `n` new tokens after `c` cached ones is one
    item (rows n, keys c + n, diagonal c); a prefix shared by several requests is one item over all their rows (which
    lie next to each other) with diagonal ALL_KEYS; a token trie in depth-first order is one item per unary run.
    """

    key_slots: Int32Array  # [keys] slots of the KV pool
    items: Int32Array  # [items, 6], columns as ITEM_FIELDS


class StepBatch(NamedTuple):
    """Everything a model executor needs for one forward pass over a packed batch."""

    tokens: Int32Array  # [rows] token ids
    positions: Int32Array  # [rows] absolute positions, for RoPE
    slots: Int32Array  # [rows] where the row's K and V are stored before attention reads them
    logit_rows: Int32Array  # [outputs] rows whose logits are wanted, ascending
    plan: AttentionPlan
