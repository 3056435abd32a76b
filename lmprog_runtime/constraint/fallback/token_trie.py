"""The vocabulary as a trie in numpy arrays, one level after the other, and the walk over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.fallback.derivatives import Derivatives
from lmprog_runtime.constraint.fallback.nodes import EMPTY


class Level(NamedTuple):
    """Trie nodes of one depth."""

    parents: NDArray[np.int32]  # index into the level above
    bytes: NDArray[np.uint8]  # on the edge from the parent
    token_nodes: NDArray[np.int32]  # nodes of this level where a token ends ...
    token_ids: NDArray[np.int32]  # ... and its id


class TokenTrie:
    """Built once per vocabulary (about half a second for 128,000 tokens)."""

    def __init__(self, ordered: Sequence[tuple[bytes, int]], size: int) -> None:
        self.size = size
        self.levels = _levels(ordered)

    def allowed(self, nodes: Derivatives, state: int) -> NDArray[np.bool_]:
        """[size]: which tokens may follow. Each level maps (state, byte class) pairs through a table that holds only
        the pairs that occur, so the automaton is asked once per pair and numpy does the rest."""
        allowed = np.zeros(self.size, bool)
        states = np.array([EMPTY, state])
        current = np.array([1], np.int32)  # per node of the level: index into `states`; 0 is dead
        for level in self.levels:
            parents = current[level.parents]
            alive = np.flatnonzero(parents)
            if not alive.size:
                break
            classes = np.array(nodes.classes, np.int32)
            keys = parents[alive] * nodes.class_count + classes[level.bytes[alive]]
            states, table = _transitions(nodes, states, keys)
            current = np.zeros(len(level.parents), np.int32)
            current[alive] = table[keys]
            allowed[level.token_ids] = current[level.token_nodes] != 0
        return allowed


def _transitions(
    nodes: Derivatives, states: NDArray[np.int64], keys: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The states of the next level, and for each (state, class) key the index of the one it leads to."""
    count = nodes.class_count
    used = np.zeros(len(states) * count, bool)
    used[keys] = True
    table = np.zeros(len(used), np.int32)
    index = {EMPTY: 0}
    for key in np.flatnonzero(used).tolist():
        after = nodes.next_state(int(states[key // count]), nodes.representatives[key % count])
        table[key] = index.setdefault(after, len(index))
    return np.array(list(index)), table


def _levels(ordered: Sequence[tuple[bytes, int]]) -> list[Level]:
    parents: list[list[int]] = []
    edges: list[list[int]] = []
    ends: list[list[tuple[int, int]]] = []
    previous = b""
    for data, token_id in ordered:
        common = 0
        while common < len(data) and common < len(previous) and data[common] == previous[common]:
            common += 1
        for depth in range(common, len(data)):
            if depth == len(parents):
                parents.append([])
                edges.append([])
                ends.append([])
            parents[depth].append(len(parents[depth - 1]) - 1 if depth else 0)
            edges[depth].append(data[depth])
        ends[len(data) - 1].append((len(parents[len(data) - 1]) - 1, token_id))
        previous = data
    return [
        Level(
            np.array(parents[d], np.int32),
            np.array(edges[d], np.uint8),
            np.array([node for node, _ in ends[d]], np.int32),
            np.array([token for _, token in ends[d]], np.int32),
        )
        for d in range(len(parents))
    ]
