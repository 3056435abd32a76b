"""Attention from a plan in plain torch: float32 scores, softmax and sums whatever the dtype of the pool.

The meaning of every other implementation, and what runs where no better one does. Shapes: queries [rows, heads,
head_dim]; kv [slots, 2, kv_heads, head_dim] of one layer; head h reads kv head h // (heads // kv_heads).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lmprog_kernels.plan import (
    DIAGONAL,
    KEY_COUNT,
    KEY_POSITION,
    KEY_START,
    ROW_COUNT,
    ROW_START,
    Int32Array,
    Plan,
    Rule,
    Work,
)

MOST_SCORES = 1 << 24
"""Scores held at once (64 MiB of float32): longer work is cut into blocks of rows."""


def plan_attention(queries: Tensor, kv: Tensor, plan: Plan, rule: Rule, sinks: Tensor | None = None) -> Tensor:
    """Attention of every row over all its items. Returns [rows, heads, head_dim] in the queries' dtype.

    sinks: [heads] logits of a key without value that every row sees (gpt-oss), or None.
    """
    kinds = ((decode_attention, plan.decode), (extend_attention, plan.extend), (shared_prefix_attention, plan.shared))
    parts = [attend(queries, kv, plan, work, rule) for attend, work in kinds if work.num_states]
    out, lse = torch.cat([part for part, _ in parts]), torch.cat([part for _, part in parts])
    out, lse = _merge_rows(out, lse, plan)
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks.float()).unsqueeze(-1)
    return out.to(queries.dtype)


def extend_attention(queries: Tensor, kv: Tensor, plan: Plan, work: Work, rule: Rule) -> tuple[Tensor, Tensor]:
    """Partial states of all items: (out [states, heads, head_dim], lse [states, heads]), both float32.

    Item by item: padding 32 decodes of 513 keys to one product was no faster (257 ms against 205 for 30 layers on two
    cores), since the gathered copy of all keys falls out of the cache between being written and being read.
    """
    parts = [part for index in range(len(work.items)) for part in _attend_item(queries, kv, plan, work, index, rule)]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


decode_attention = extend_attention
"""The same for items of one row."""

shared_prefix_attention = extend_attention
"""The same for items whose rows, of several requests, all see all the keys (cascade): one dense product per item."""


def merge_states(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention over two disjoint key sets.

    out_*: [rows, heads, head_dim] float; lse_*: [rows, heads] float32, natural log of the softmax denominator, -inf for
    an empty set. Returns (out, lse) of the union, float32. Source: FlashAttention-2 (arXiv 2307.08691), section 3.1.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    top = _finite(lse)  # two empty sets give an empty one, not NaN
    weight_a, weight_b = (lse_a - top).exp().unsqueeze(-1), (lse_b - top).exp().unsqueeze(-1)
    return out_a.float() * weight_a + out_b.float() * weight_b, lse


def _merge_rows(out: Tensor, lse: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Partial states to rows: `merge_states` over all the states of each row at once."""
    rows, num_rows = plan.state_rows, len(plan.positions)
    merged = out.new_zeros(num_rows, *out.shape[1:])
    top = lse.new_full((num_rows, lse.shape[1]), -torch.inf)
    if not plan.is_merged:
        return merged.index_copy_(0, rows, out), top.index_copy_(0, rows, lse)
    top = _finite(top.scatter_reduce_(0, rows.unsqueeze(1).expand_as(lse), lse, "amax"))
    weight = (lse - top[rows]).exp()
    total = lse.new_zeros(num_rows, lse.shape[1]).index_add_(0, rows, weight)
    merged.index_add_(0, rows, out * weight.unsqueeze(-1))
    return merged / total.unsqueeze(-1), top + total.log()


def _attend_item(
    queries: Tensor, kv: Tensor, plan: Plan, work: Work, index: int, rule: Rule
) -> Iterator[tuple[Tensor, Tensor]]:
    """(out, lse) of one item, in blocks of rows."""
    item = work.items[index]
    key, value = _keys_and_values(kv, plan, item, int(work.runs[index]))
    row_count, step = int(item[ROW_COUNT]), max(1, MOST_SCORES // (queries.shape[1] * int(item[KEY_COUNT])))
    for first in range(0, row_count, step):
        start, count = int(item[ROW_START]) + first, min(step, row_count - first)
        hidden = _hidden(plan.positions[start : start + count], item, first, rule)
        yield _attend(queries[start : start + count], key, value, hidden, rule)


def _keys_and_values(kv: Tensor, plan: Plan, item: Int32Array, run: int) -> tuple[Tensor, Tensor]:
    """K as [kv_heads, head_dim, keys] and V as [kv_heads, keys, head_dim], float32; no copy where slots are a run."""
    start, count = int(item[KEY_START]), int(item[KEY_COUNT])
    pairs = kv[run : run + count] if run >= 0 else kv.index_select(0, plan.key_slots[start : start + count])
    return pairs[:, 0].float().permute(1, 2, 0), pairs[:, 1].float().transpose(0, 1)


def _attend(rows: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """rows [rows, heads, head_dim]. A row that sees no key gives out 0 and lse -inf."""
    count, heads, dim = rows.shape
    # the group of heads that reads one kv head lies in one matrix, so that K and V are read once
    grouped = (rows.float() * rule.scale).view(count, key.shape[0], -1, dim).transpose(0, 1).flatten(1, 2)
    scores = torch.bmm(grouped, key)  # [kv_heads, rows * group, keys]
    if rule.softcap is not None:
        scores = scores.div_(rule.softcap).tanh_().mul_(rule.softcap)
    if hidden is not None:
        scores.view(key.shape[0], count, -1, key.shape[2]).masked_fill_(hidden.unsqueeze(1), -torch.inf)
    top = _finite(scores.amax(-1, keepdim=True))
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    out = torch.bmm(weights, value) / total.clamp_min(torch.finfo(torch.float32).tiny)
    lse = (top + total.log()).view(key.shape[0], count, -1).transpose(0, 1)
    return out.view(key.shape[0], count, -1, dim).transpose(0, 1).reshape(count, heads, dim), lse.reshape(count, heads)


def _hidden(positions: Tensor, item: Int32Array, first_row: int, rule: Rule) -> Tensor | None:
    """[rows, keys], True where a row must not see a key; None when all see all. `positions` of the item's rows."""
    diagonal, key_count = int(item[DIAGONAL]) + first_row, int(item[KEY_COUNT])
    sees_all = diagonal >= key_count - 1
    if sees_all and rule.window is None:
        return None
    keys = torch.arange(key_count, device=positions.device)
    last = torch.arange(len(positions), device=positions.device).unsqueeze(1) + diagonal
    hidden = keys > last
    if rule.window is not None:
        hidden |= keys + int(item[KEY_POSITION]) <= positions.unsqueeze(1) - rule.window
    return hidden


def _finite(lse: Tensor) -> Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)
