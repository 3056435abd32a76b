"""Attention from a plan in Triton. Same names, shapes and results as `lmprog_kernels.reference.attention`.

One kernel computes a tile: some rows of one item, all query heads that read one kv head, over one range of keys.
Decode, extend and shared prefix differ in the size of the tile and in whether long items are cut into ranges for
parallelism (split-KV). Ranges begin at absolute positions, so a row's cuts do not depend on the batch. A second kernel
merges ranges, and the items of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lmprog_kernels.plan import KEY_COUNT, KEY_POSITION, ROW_COUNT, Plan, Rule, Work
from lmprog_kernels.triton.kernels import attend_tiles_kernel, merge_states_kernel

UNSPLIT = 1 << 30


class Tiling(NamedTuple):
    """Sizes of a tile, chosen without a card to measure on."""

    heads_times_rows: int  # rows of the tile's products, at least 16 for tl.dot
    keys: int
    split: int  # keys per range, a multiple of `keys`


DECODE = Tiling(heads_times_rows=16, keys=64, split=512)
EXTEND = Tiling(heads_times_rows=64, keys=64, split=UNSPLIT)
SHARED = Tiling(heads_times_rows=64, keys=64, split=512)


IS_INTERPRETED = not isinstance(attend_tiles_kernel, triton.JITFunction)


def plan_attention(queries: Tensor, kv: Tensor, plan: Plan, rule: Rule, sinks: Tensor | None = None) -> Tensor:
    """See `reference.plan_attention`."""
    kinds = ((decode_attention, plan.decode), (extend_attention, plan.extend), (shared_prefix_attention, plan.shared))
    parts = [attend(queries, kv, plan, work, rule) for attend, work in kinds if work.num_states]
    out, lse = torch.cat([part for part, _ in parts]), torch.cat([part for _, part in parts])
    out, lse = _merge(out.unsqueeze(0), lse.unsqueeze(0), plan)
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks.float()).unsqueeze(-1)
    return out.to(queries.dtype)


def decode_attention(queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule) -> tuple[Tensor, Tensor]:
    """See `reference.decode_attention`."""
    return _attend(queries, kv, plan, work, rule, DECODE)


def extend_attention(queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule) -> tuple[Tensor, Tensor]:
    """See `reference.extend_attention`."""
    return _attend(queries, kv, plan, work, rule, EXTEND)


def shared_prefix_attention(queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule) -> tuple[Tensor, Tensor]:
    """See `reference.shared_prefix_attention`."""
    return _attend(queries, kv, plan, work, rule, SHARED)


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """See `reference.merge_states`."""
    return _merge(torch.stack((out_a.float(), out_b.float())), torch.stack((lse_a, lse_b)), None)


def _attend(queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Partial states of `work`, ranges merged; queries and kv must be contiguous in head_dim."""
    heads, dim = queries.shape[1:]
    kv_heads = kv.shape[2]
    group = heads // kv_heads
    tile = max(tiling.heads_times_rows, triton.next_power_of_2(group))
    row_tiles = triton.cdiv(int(work.items[:, ROW_COUNT].max()), tile // group)
    splits = _splits(work, tiling.split)
    out = torch.empty(splits, work.num_states, heads, dim, dtype=torch.float32, device=queries.device)
    lse = torch.empty(splits, work.num_states, heads, dtype=torch.float32, device=queries.device)
    attend_tiles_kernel[(len(work.items) * row_tiles, kv_heads, splits)](
        queries,
        kv,
        plan.key_slots,
        work.device_items,
        work.offsets,
        plan.positions,
        out,
        lse,
        rule.scale,
        rule.softcap or 1.0,
        rule.window or 0,
        work.num_states,
        row_tiles,
        queries.stride(0),
        queries.stride(1),
        kv.stride(0),
        kv.stride(1),
        kv.stride(2),
        GROUP=group,
        HEADS=heads,
        DIM=dim,
        DIM_BLOCK=max(16, triton.next_power_of_2(dim)),
        TILE=tile,
        KEYS=tiling.keys,
        SPLIT=tiling.split,
        HAS_WINDOW=rule.window is not None,
        HAS_SOFTCAP=rule.softcap is not None,
        DOT=tl.float32 if IS_INTERPRETED else _TYPES[queries.dtype],
    )
    return (out[0], lse[0]) if splits == 1 else _merge(out, lse, None)


_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def _splits(work: Work, split: int) -> int:
    """Ranges of the item that has the most."""
    first = work.items[:, KEY_POSITION] // split
    last = (work.items[:, KEY_POSITION] + work.items[:, KEY_COUNT] - 1) // split
    return int((last - first).max()) + 1


def _merge(out: Tensor, lse: Tensor, plan: Plan | None) -> tuple[Tensor, Tensor]:
    """Merge ranges [splits, states, ...] and, with a plan, the states of each row."""
    splits, num_states, heads, dim = out.shape
    rows = num_states if plan is None else len(plan.positions)
    merged = torch.empty(rows, heads, dim, dtype=torch.float32, device=out.device)
    merged_lse = torch.empty(rows, heads, dtype=torch.float32, device=out.device)
    merge_states_kernel[(rows, heads)](
        out,
        lse,
        lse if plan is None else plan.row_starts,
        lse if plan is None else plan.row_states,
        merged,
        merged_lse,
        num_states,
        splits,
        HEADS=heads,
        DIM=dim,
        DIM_BLOCK=triton.next_power_of_2(dim),
        BY_ROW=plan is not None,
    )
    return merged, merged_lse
