"""Which rows of a step share which part of their prefix, and when it pays to attend to it together.

Chunks with many rows attend alone. The others are put in depth-first order over the tree, so that those below a node
are neighbours. A shared part is then one item over all their rows. The one that computes a shared part in this very
step goes first: its rows see it causally, all later rows see all of it, and one item with a diagonal says both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from lmprog_runtime.cache.node import Node, path
from lmprog_runtime.scheduler.chunk import Chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeRule:
    """When the chunks of a step attend together to what they share; the executor knows from where on that is faster.

    A chunk alone reads each key once for all its states (rows times `query_group`). With few of them reading is what it
    takes time for, and reading together saves it. With many it is arithmetic, which stays, and states that have to be
    merged are added.
    """

    max_states: float = math.inf  # of a chunk; those with more are left out
    keys_per_state: int = 0  # length of the part, over the states of a chunk on average
    min_saved: int = 1  # keys that need not be read again: length of the part, times the chunks but one
    query_group: int = 1  # query heads per KV head
    alignment: int = 1  # parts begin and end at multiples of this position, so that sums are cut at the same places

    def takes(self, rows: int) -> bool:
        """Whether a chunk of so many rows is one that can gain: a single row always is."""
        return rows == 1 or rows * self.query_group <= self.max_states

    def pays(self, chunks: int, rows: int, keys: int) -> bool:
        """Whether `chunks` that the rule takes, with `rows` in all, attend together to `keys`."""
        is_long = keys * chunks >= rows * self.query_group * self.keys_per_state
        return is_long and keys * (chunks - 1) >= self.min_saved


class SharedPart(NamedTuple):
    """Positions [low, high) of chunks[first : last], which all have the same slots there."""

    first: int
    last: int
    low: int
    high: int


class Layout(NamedTuple):
    order: list[int]  # of the chunks
    common: list[int]  # tokens that neighbours in that order share; one less than chunks


def lay_out(chunks: list[Chunk]) -> Layout:
    """Depth-first order, the one that computes a shared node before those that read it."""
    paths = [_path(chunk) for chunk in chunks]
    ranked = sorted(
        (_rank(chunk, nodes), index) for index, (chunk, nodes) in enumerate(zip(chunks, paths, strict=True))
    )
    order = [index for _, index in ranked]
    return Layout(order, [_common(paths[left], paths[right]) for left, right in pairwise(order)])


def _path(chunk: Chunk) -> list[Node]:
    assert chunk.sequence.row is not None
    return path(chunk.sequence.row.node)


def _rank(chunk: Chunk, nodes: list[Node]) -> list[float]:
    """Serials along the path. A node made by a split takes the serial of what it was split from, so what an older node
    still computes comes before what was hung below it later. One that ends at a node which others continue comes last,
    unless it computes that node now."""
    assert chunk.sequence.row is not None
    computes_shared = chunk.start < chunk.sequence.row.shared
    return [*(node.serial for node in nodes), -1 if computes_shared else float("inf")]


def _common(left: list[Node], right: list[Node]) -> int:
    end = 0
    for one, other in zip(left, right, strict=False):
        if one is not other:
            break
        end = one.end
    return end


def shared_parts(rows: Items[int], common: list[int], rule: CascadeRule) -> list[SharedPart]:
    """Parts that pay, outer ones first; what does not pay is left to the parts or chunks inside. `rows` counts those of
    each chunk, in layout order; `common` as in Layout."""
    found: list[SharedPart] = []
    stack = [(0, len(rows), 0)] if rows else []
    while stack:
        first, last, low = stack.pop()
        if last - first < 2:
            continue
        shared = min(common[first : last - 1])
        high = shared - shared % rule.alignment
        if rule.pays(last - first, sum(rows[first:last]), high - low):
            found.append(SharedPart(first, last, low, high))
            low = high
        cuts = [index + 1 for index in range(first, last - 1) if common[index] == shared]
        stack.extend((start, end, low) for start, end in pairwise([first, *cuts, last]))
    return found
