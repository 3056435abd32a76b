"""Attention by definition: one softmax per row and head in float64. And random plans of every kind to try it on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmprog_runtime.step import ALL_KEYS, AttentionPlan


class Case(NamedTuple):
    queries: Tensor  # [rows, heads, head_dim]
    kv: Tensor  # [slots, 2, kv_heads, head_dim]
    plan: AttentionPlan
    positions: np.ndarray  # [rows] int32
    has_int8_pool: bool = False  # kv is then what such a pool can hold


def make_case(queries: Tensor, kv: Tensor, plan: AttentionPlan, positions: np.ndarray, dtype: torch.dtype) -> Case:
    """Queries and a pool of random numbers, rounded to what `dtype` of the pool makes of them."""
    if dtype != torch.int8:
        return Case(queries.to(dtype), kv.to(dtype), plan, positions)
    codes, scales = quantize(kv)
    return Case(queries.bfloat16(), codes.float() * scales, plan, positions, has_int8_pool=True)


def quantize(kv: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of every head of every token, and the scales [..., 1] float32; those of NaN are NaN."""
    scales = kv.float().abs().amax(dim=-1, keepdim=True) / 127
    return (kv.float() / scales.clamp_min(1e-30)).nan_to_num(77.0).round().to(torch.int8), scales


def int8_rows(kv: Tensor) -> Tensor:
    """The rows of an int8 pool, [slots, bytes] int8: K of all heads, V of all heads, and the scales of K and V by head,
    in whole cache lines."""
    codes, scales = quantize(kv)
    parts = codes.flatten(1), scales.squeeze(-1).transpose(1, 2).contiguous().flatten(1).view(torch.int8)
    rows = torch.cat(parts, dim=1)
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % 64))


def dense_attention(
    case: Case, *, scale: float, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None
) -> Tensor:
    """[rows, heads, head_dim] float64, from the sentence in `AttentionPlan`, row by row."""
    queries, kv = case.queries.double(), case.kv.double()
    group = queries.shape[1] // kv.shape[2]
    out = torch.empty_like(queries)
    for row in range(len(queries)):
        slots = torch.tensor(_visible(case, row, window))
        keys, values = kv[slots].repeat_interleave(group, dim=2).unbind(1)  # [keys, heads, head_dim]
        scores = torch.einsum("hd,khd->hk", queries[row], keys) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if sinks is not None:
            scores = torch.cat([scores, sinks.double().unsqueeze(1)], dim=1)
        weights = scores.softmax(dim=-1)[:, : len(slots)]
        out[row] = torch.einsum("hk,khd->hd", weights, values)
    return out


def _visible(case: Case, row: int, window: int | None) -> list[int]:
    found = []
    for row_start, row_count, key_start, key_count, diagonal, key_position in case.plan.items.tolist():
        i = row - row_start
        if not 0 <= i < row_count:
            continue
        for j in range(key_count):
            in_window = window is None or key_position + j > case.positions[row] - window
            if j <= i + diagonal and in_window:
                found.append(int(case.plan.key_slots[key_start + j]))
    return found


class PlanBuilder:
    """Packs requests into a plan over random (or consecutive) slots."""

    def __init__(self, generator: np.random.Generator, num_slots: int, *, scattered: bool = True) -> None:
        slots = np.arange(num_slots, dtype=np.int32)
        self._free = list(generator.permutation(slots) if scattered else slots)
        self._key_slots: list[int] = []
        self._items: list[tuple[int, ...]] = []
        self.positions: list[int] = []
        self.slots: list[int] = []  # of the rows

    def take(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        return [int(slot) for slot in taken]

    def extend(self, cached: list[int], new: int, *, first_position: int = 0, own: list[int] | None = None) -> None:
        """`new` rows after the slots `cached`, whose first lies at `first_position`."""
        own = self.take(new) if own is None else own
        self._item(len(self.positions), new, cached + own, len(cached), first_position)
        start = first_position + len(cached)
        self.positions += range(start, start + new)
        self.slots += own

    def share(self, slots: list[int], first_row: int, rows: int, *, first_position: int = 0) -> None:
        """Rows that are in the plan already also see all of `slots`."""
        self._item(first_row, rows, slots, ALL_KEYS, first_position)

    def _item(self, row: int, rows: int, slots: list[int], diagonal: int, position: int) -> None:
        self._items.append((row, rows, len(self._key_slots), len(slots), diagonal, position))
        self._key_slots += slots

    def plan(self) -> AttentionPlan:
        return AttentionPlan(np.array(self._key_slots, np.int32), np.array(self._items, np.int32).reshape(-1, 6))


def mixed_case(
    seed: int, *, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32, scattered: bool = True
) -> Case:
    """Decodes, fresh and chunked extends, two levels of shared prefix, and a small token trie."""
    generator = np.random.default_rng(seed)
    builder = PlanBuilder(generator, 400, scattered=scattered)
    for length in (0, 1, 37):
        builder.extend(builder.take(length), 1)
    builder.extend([], 9)
    builder.extend(builder.take(21), 6)
    _cascade(builder)
    _trie(builder)
    torch.manual_seed(seed)
    queries = torch.randn(len(builder.positions), heads, head_dim)
    kv = torch.randn(400, 2, kv_heads, head_dim)
    return make_case(queries, kv, builder.plan(), np.array(builder.positions, np.int32), dtype)


def _cascade(builder: PlanBuilder) -> None:
    """Three requests on a prefix of 30, two of which share 10 more; the first decodes, the others extend."""
    first = len(builder.positions)
    builder.extend(builder.take(4), 1, first_position=30)
    builder.extend(builder.take(2), 3, first_position=40)
    builder.extend([], 5, first_position=40)
    builder.share(builder.take(30), first, 9)
    builder.share(builder.take(10), first + 1, 8, first_position=30)


def _trie(builder: PlanBuilder) -> None:
    """After a prefix of 12: a run of 2 tokens with two children, runs of 1 and 3; every run is an item."""
    first = len(builder.positions)
    prefix, trunk = builder.take(12), builder.take(2)
    builder.extend([], 2, first_position=12, own=trunk)
    builder.extend([], 1, first_position=14)
    builder.extend([], 3, first_position=14)
    builder.share(prefix, first, 6)
    builder.share(trunk, first + 2, 4, first_position=12)
