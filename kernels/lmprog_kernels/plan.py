"""An attention plan sorted into the three kinds of work that kernels know, once per step. Holds no kernel.

Items are rows of six integers: row_start, row_count, key_start, key_count, diagonal, key_position (see
`lmprog_runtime.step.AttentionPlan`). Row i of an item sees its key j iff j <= i + diagonal. Each row of each item gives
one *partial state*: the attention over the item's keys alone and the log-sum-exp of its scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Int32Array = NDArray[np.int32]

ROW_START, ROW_COUNT, KEY_START, KEY_COUNT, DIAGONAL, KEY_POSITION = range(6)


class Rule(NamedTuple):
    """How scores are made: softcap(q k scale), visible where key position > row position - window."""

    scale: float
    window: int | None = None  # tokens
    softcap: float | None = None


class Work(NamedTuple):
    """Items of one kind. Partial states are numbered row by row, item after item."""

    items: Int32Array  # [items, 6] on the host
    runs: Int32Array  # [items] first slot where the item's slots are consecutive, else -1
    device_items: Tensor  # the same, int32 on the device
    offsets: Tensor  # [items] int32: number of each item's first partial state
    num_states: int  # sum of the items' rows


class Plan(NamedTuple):
    """Partial states are numbered over `decode`, then `extend`, then `shared`."""

    key_slots: Tensor  # [keys] int32
    positions: Tensor  # [rows] int32: absolute position of each row
    decode: Work  # items of one row, which sees all the keys
    extend: Work  # items of several rows on a diagonal
    shared: Work  # items of several rows, which all see all the keys
    state_rows: Tensor  # [states] int64: the row that each partial state belongs to
    row_states: Tensor  # [states] int32: numbers of the partial states, sorted by row
    row_starts: Tensor  # [rows + 1] int32: where each row's part of `row_states` begins
    is_merged: bool  # False: every row has exactly one partial state


def prepare_plan(key_slots: Int32Array, items: Int32Array, positions: Int32Array, device: str = "cpu") -> Plan:
    """Sort items by kind and number their partial states. Keys that no row of an item sees are cut off."""
    items = items.reshape(-1, 6).copy()
    items[:, KEY_COUNT] = np.minimum(items[:, KEY_COUNT].astype(np.int64), _last_seen(items) + 1)
    items = items[items[:, KEY_COUNT] > 0]
    is_decode = items[:, ROW_COUNT] == 1
    is_shared = ~is_decode & (items[:, DIAGONAL] >= items[:, KEY_COUNT] - 1)
    runs = _runs(key_slots, items)
    kinds = (is_decode, ~is_decode & ~is_shared, is_shared)
    decode, extend, shared = (_work(items[kind], runs[kind], device) for kind in kinds)
    rows = np.concatenate([_rows(items[kind]) for kind in kinds])
    row_starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(positions)))])
    return Plan(
        _to(key_slots, device),
        _to(positions, device),
        decode,
        extend,
        shared,
        state_rows=torch.from_numpy(rows).to(device),
        row_states=_to(np.argsort(rows, kind="stable"), device),
        row_starts=_to(row_starts, device),
        is_merged=len(rows) != len(positions),
    )


def _last_seen(items: Int32Array) -> NDArray[np.int64]:
    rows = items[:, ROW_COUNT].astype(np.int64)
    return rows - 1 + items[:, DIAGONAL]


def _rows(items: Int32Array) -> NDArray[np.int64]:
    """The row of each partial state."""
    counts = items[:, ROW_COUNT].astype(np.int64)
    firsts = np.cumsum(counts) - counts
    starts: NDArray[np.int64] = np.repeat(items[:, ROW_START] - firsts, counts)
    return starts + np.arange(counts.sum())


def _runs(key_slots: Int32Array, items: Int32Array) -> Int32Array:
    breaks = np.concatenate([[0], np.cumsum(np.diff(key_slots) != 1)])
    starts = items[:, KEY_START]
    is_run = breaks[starts] == breaks[starts + items[:, KEY_COUNT] - 1]
    return np.where(is_run, key_slots[starts], -1).astype(np.int32)


def _work(items: Int32Array, runs: Int32Array, device: str) -> Work:
    counts = items[:, ROW_COUNT]
    return Work(items, runs, _to(items, device), _to(np.cumsum(counts) - counts, device), int(counts.sum()))


def _to(values: NDArray[np.integer], device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32)).to(device)
