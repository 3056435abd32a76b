"""A token trie as rows of a step: depths, and the unary runs that become attention items."""

from __future__ import annotations

from typing import NamedTuple


class TokenTree(NamedTuple):
    """A token trie after a prefix, to be scored."""

    tokens: tuple[int, ...]  # depth-first preorder
    parents: tuple[int, ...]  # index of the parent node, -1 for the end of the prefix


class Run(NamedTuple):
    """Nodes [first, last) of which each is the only child of the one before. Their keys are seen by the rows of the run
    itself (causally) and by all rows up to `subtree_end`: in preorder those follow without a gap."""

    first: int
    last: int
    subtree_end: int
    depth: int  # of the first node; 0 is a child of the prefix


class TrieLayout(NamedTuple):
    depths: tuple[int, ...]
    runs: tuple[Run, ...]

    @property
    def height(self) -> int:
        """Tokens of the longest branch."""
        return max(self.depths, default=-1) + 1


def lay_out(tree: TokenTree) -> TrieLayout:
    """ValueError when the nodes are not in depth-first preorder."""
    depths = _depths(tree.parents)
    sizes, children = [1] * len(depths), [0] * len(depths)
    for node in range(len(depths) - 1, -1, -1):
        parent = tree.parents[node]
        if parent >= 0:
            sizes[parent] += sizes[node]
            children[parent] += 1
    return TrieLayout(tuple(depths), tuple(_runs(tree.parents, depths, sizes, children)))


def _depths(parents: tuple[int, ...]) -> list[int]:
    depths: list[int] = []
    branch: list[int] = []  # nodes from the prefix to the last node
    for node, parent in enumerate(parents):
        while branch and branch[-1] != parent:
            branch.pop()
        if not branch and parent != -1:
            raise ValueError(
                f"Node {node} of the token tree names parent {parent}; put the nodes in depth-first preorder."
            )
        depths.append(len(branch))
        branch.append(node)
    return depths


def _runs(parents: tuple[int, ...], depths: list[int], sizes: list[int], children: list[int]) -> list[Run]:
    runs: list[Run] = []
    first = 0
    for node in range(len(depths)):
        following = node + 1
        if following < len(depths) and parents[following] == node and children[node] == 1:
            continue
        runs.append(Run(first, following, first + sizes[first], depths[first]))
        first = following
    return runs
