"""Sorting a plan into work: every visible (row, key) pair is in exactly one item of one kind, and merging adds up."""

from __future__ import annotations

import numpy as np
import pytest

from lmprog_kernels.plan import DIAGONAL, KEY_COUNT, ROW_COUNT, Plan, Work, prepare_plan
from lmprog_runtime.step import ALL_KEYS
from tests.support.attention_oracle import mixed_case


def _prepare(items: list[tuple[int, ...]], rows: int, slots: list[int] | None = None) -> Plan:
    keys = max(item[2] + item[3] for item in items)
    table = np.array(items, np.int32)
    return prepare_plan(np.array(slots or range(keys), np.int32), table, np.arange(rows, dtype=np.int32))


def _items(work: Work) -> list[list[int]]:
    return work.items.tolist()


def test_items_are_sorted_by_kind() -> None:
    decode, extend, shared = (0, 1, 0, 5, 4, 0), (1, 3, 5, 7, 4, 0), (0, 4, 12, 6, ALL_KEYS, 0)
    plan = _prepare([shared, extend, decode], rows=4)
    assert _items(plan.decode) == [list(decode)]
    assert _items(plan.extend) == [list(extend)]
    assert _items(plan.shared) == [list(shared)]


def test_keys_that_no_row_sees_are_cut_off() -> None:
    plan = _prepare([(0, 1, 0, 9, 3, 0), (1, 2, 9, 9, -2, 0), (1, 2, 18, 9, 1, 0)], rows=3)
    assert plan.decode.items[0, KEY_COUNT] == 4
    assert [item[KEY_COUNT] for item in _items(plan.extend)] == [3]


def test_a_diagonal_that_hides_nothing_is_shared_work() -> None:
    plan = _prepare([(0, 3, 0, 4, 3, 0), (0, 3, 4, 4, 2, 4)], rows=3)
    assert [item[DIAGONAL] for item in _items(plan.shared)] == [3]
    assert [item[DIAGONAL] for item in _items(plan.extend)] == [2]


@pytest.mark.parametrize(("slots", "run"), [([7, 8, 9, 10], 7), ([7, 8, 10, 9], -1), ([7, 6, 5, 4], -1)])
def test_consecutive_slots_are_noticed(slots: list[int], run: int) -> None:
    plan = _prepare([(0, 1, 0, 4, 3, 0)], rows=1, slots=slots)
    assert plan.decode.runs.tolist() == [run]


def test_a_break_outside_an_item_does_not_matter() -> None:
    plan = _prepare([(0, 1, 2, 3, 2, 0), (1, 1, 0, 3, 2, 0)], rows=2, slots=[90, 91, 5, 6, 7])
    assert plan.decode.runs.tolist() == [5, -1]


def test_states_are_numbered_over_decode_extend_and_shared() -> None:
    plan = _prepare([(0, 4, 0, 6, ALL_KEYS, 0), (1, 3, 6, 7, 4, 6), (0, 1, 13, 5, 4, 6)], rows=4)
    assert plan.state_rows.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert plan.row_starts.tolist() == [0, 2, 4, 6, 8]
    assert plan.row_states.tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert plan.is_merged


def test_one_state_per_row_needs_no_merge() -> None:
    assert not _prepare([(0, 1, 0, 5, 4, 0), (1, 3, 5, 7, 4, 0)], rows=4).is_merged


@pytest.mark.parametrize("seed", range(5))
def test_every_row_of_every_item_has_one_state(seed: int) -> None:
    case = mixed_case(seed, heads=2, kv_heads=1, head_dim=8)
    plan = prepare_plan(case.plan.key_slots, case.plan.items, case.positions)
    expected = [row + i for row, count in case.plan.items[:, [0, ROW_COUNT]].tolist() for i in range(count)]
    assert sorted(plan.state_rows.tolist()) == sorted(expected)
    for row in range(len(case.positions)):
        states = plan.row_states[plan.row_starts[row] : plan.row_starts[row + 1]].tolist()
        assert plan.state_rows[states].tolist() == [row] * len(states)
