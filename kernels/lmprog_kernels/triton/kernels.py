# ruff: noqa: ANN001, ANN201, N803
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# (Triton evaluates the annotations of a kernel, and knows none but constexpr.)
"""The kernels themselves. What they compute is said where they are launched, in `attention` and `storage`.

Stays inside the API of Triton 3.6. Products are taken in the type DOT, which is float32 in the interpreter: its
arithmetic on bfloat16 tensors silently works on their bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_POSITION = tl.constexpr(1 << 30)
"""Of lines that hold no row: beyond all windows."""


@triton.jit
def see_keys(i, j, end, diagonal, position, key_position, window, HAS_WINDOW: tl.constexpr):
    """[lines, keys]: whether row i of the item sees its key j."""
    is_visible = (j < end)[None, :] & (j[None, :] <= i[:, None] + diagonal)
    if HAS_WINDOW:
        is_visible = is_visible & (key_position + j[None, :] > position[:, None] - window)
    return is_visible


@triton.jit
def key_range(
    key_position,
    key_count,
    split,
    row_limit,
    row_count,
    diagonal,
    position,
    window,
    SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
):
    """Keys of a tile: of its split, up to the last one that its last row sees, from the first one in any window."""
    begin = (key_position // SPLIT + split) * SPLIT - key_position
    last_row = tl.minimum(row_limit, row_count) - 1
    end = tl.minimum(tl.minimum(begin + SPLIT, key_count), last_row + diagonal + 1)
    begin = tl.maximum(begin, 0)
    if HAS_WINDOW:
        begin = tl.maximum(begin, tl.min(position, 0) - window + 1 - key_position)
    return begin, end


# fmt: off
@triton.jit
def attend_tiles_kernel(
    queries,  # [rows, heads, head_dim]
    kv,  # [slots, 2, kv_heads, head_dim]
    key_slots, items, offsets, positions,  # of the plan and its work, int32
    out,  # [splits, states, heads, head_dim] float32
    lse,  # [splits, states, heads] float32
    scale, softcap, window, num_states, row_tiles,
    query_row_stride, query_head_stride, kv_slot_stride, kv_pair_stride, kv_head_stride,
    GROUP: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    TILE: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, DOT: tl.constexpr,
):
    # fmt: on
    item = tl.program_id(0) // row_tiles
    tile = tl.program_id(0) % row_tiles
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row_start = tl.load(items + item * 6)
    row_count = tl.load(items + item * 6 + 1)
    key_start = tl.load(items + item * 6 + 2)
    key_count = tl.load(items + item * 6 + 3)
    diagonal = tl.load(items + item * 6 + 4)
    key_position = tl.load(items + item * 6 + 5)
    first = tile * (TILE // GROUP)
    if first >= row_count:
        return
    line = tl.arange(0, TILE)
    dim = tl.arange(0, DIM_BLOCK)
    i = first + line // GROUP
    head = kv_head * GROUP + line % GROUP
    is_line = (line < TILE // GROUP * GROUP) & (i < row_count)
    in_dim = dim[None, :] < DIM
    query = tl.load(
        queries + (row_start + i)[:, None] * query_row_stride + head[:, None] * query_head_stride + dim[None, :],
        mask=is_line[:, None] & in_dim,
        other=0.0,
    ).to(DOT)
    position = tl.load(positions + row_start + i, mask=is_line, other=NO_POSITION)
    begin, end = key_range(
        key_position, key_count, split, first + TILE // GROUP, row_count, diagonal, position, window, SPLIT, HAS_WINDOW
    )
    largest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM_BLOCK], tl.float32)
    for start in range(begin, end, KEYS):
        j = start + tl.arange(0, KEYS)
        is_key = j < end
        slot = tl.load(key_slots + key_start + j, mask=is_key, other=0).to(tl.int64)
        key = tl.load(
            kv + slot[None, :] * kv_slot_stride + kv_head * kv_head_stride + dim[:, None],
            mask=is_key[None, :] & (dim[:, None] < DIM),
            other=0.0,
        )
        scores = tl.dot(query, key.to(DOT), input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)  # tanh
        is_visible = see_keys(i, j, end, diagonal, position, key_position, window, HAS_WINDOW)
        scores = tl.where(is_visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        pivot = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no key so far: weights 0, not NaN
        weights = tl.exp(scores - pivot[:, None])
        shrink = tl.exp(largest - pivot)
        value = tl.load(
            kv + kv_pair_stride + slot[:, None] * kv_slot_stride + kv_head * kv_head_stride + dim[None, :],
            mask=is_key[:, None] & in_dim,
            other=0.0,
        )
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(DOT), value.to(DOT), input_precision="ieee")
        largest = new_largest
    has_key = total > 0
    divisor = tl.where(has_key, total, 1.0)
    state = split * num_states + tl.load(offsets + item) + i
    place = state.to(tl.int64) * HEADS + head
    tl.store(lse + place, tl.where(has_key, largest + tl.log(divisor), float("-inf")), mask=is_line)
    tl.store(out + place[:, None] * DIM + dim[None, :], mixed / divisor[:, None], mask=is_line[:, None] & in_dim)


@triton.jit
def merge_states_kernel(
    out,  # [splits, states, heads, head_dim] float32
    lse,  # [splits, states, heads] float32
    row_starts,  # [rows + 1], or unused
    row_states,  # [states], or unused
    merged,  # [rows, heads, head_dim] float32
    merged_lse,  # [rows, heads] float32
    num_states,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    BY_ROW: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    dim = tl.arange(0, DIM_BLOCK)
    begin = row
    end = row + 1
    if BY_ROW:
        begin = tl.load(row_starts + row)
        end = tl.load(row_starts + row + 1)
    largest = -float("inf")
    total = 0.0
    mixed = tl.zeros([DIM_BLOCK], tl.float32)
    for entry in range(begin, end):
        state = entry
        if BY_ROW:
            state = tl.load(row_states + entry)
        for split in range(splits):
            place = tl.cast(split * num_states + state, tl.int64) * HEADS + head
            state_lse = tl.load(lse + place)
            if state_lse > -float("inf"):
                new_largest = tl.maximum(largest, state_lse)
                shrink = tl.exp(largest - new_largest)
                weight = tl.exp(state_lse - new_largest)
                part = tl.load(out + place * DIM + dim, mask=dim < DIM, other=0.0)
                mixed = mixed * shrink + part * weight
                total = total * shrink + weight
                largest = new_largest
    has_key = total > 0
    divisor = tl.where(has_key, total, 1.0)
    place = tl.cast(row, tl.int64) * HEADS + head
    tl.store(merged_lse + place, tl.where(has_key, largest + tl.log(divisor), -float("inf")))
    tl.store(merged + place * DIM + dim, mixed / divisor, mask=dim < DIM)


@triton.jit
def store_kernel(
    keys,
    values,
    kv,
    slots,
    key_row_stride,
    key_head_stride,
    value_row_stride,
    value_head_stride,
    kv_slot_stride,
    kv_pair_stride,
    kv_head_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, BLOCK)
    head, dim = element // DIM, element % DIM
    is_inside = element < HEADS * DIM
    slot = tl.load(slots + row).to(tl.int64)
    place = kv + slot * kv_slot_stride + head * kv_head_stride + dim
    key = tl.load(keys + row * key_row_stride + head * key_head_stride + dim, mask=is_inside)
    tl.store(place, key.to(kv.dtype.element_ty), mask=is_inside)
    value = tl.load(values + row * value_row_stride + head * value_head_stride + dim, mask=is_inside)
    tl.store(place + kv_pair_stride, value.to(kv.dtype.element_ty), mask=is_inside)


@triton.jit
def mask_tokens_kernel(
    logits,
    masks,
    vocab,
    logits_stride,
    mask_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(masks + row * mask_stride + token // 32, mask=token < vocab, other=0)
    is_banned = ((word >> (token % 32)) & 1) == 0
    tl.store(logits + row * logits_stride + token, -float("inf"), mask=(token < vocab) & is_banned)
