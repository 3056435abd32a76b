"""Choices as a token trie: tokens that several choices share are computed once. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lmprog_runtime import scheduler
from lmprog_runtime.request import ChoiceTokens, ScoreRequest, ScoreResult, Sink, Usage
from lmprog_runtime.scheduler import TokenTree
from lmprog_runtime.timing import Timing

MOST_TRIE_NODES = 256
"""Nodes of one scoring job. All rows go through the head, at most one for each node: 256 x vocabulary logits."""


class NodeScore(NamedTuple):
    logprob: float  # natural log, given the parent
    is_best: bool  # the likeliest child of its parent; meaningful only where it was asked for


UNSCORED = NodeScore(0.0, False)


class ChoiceTrie:
    """A trie over the token ids of some choices, in depth-first order.

    `tokens[i]` is scored by the logits of the node `parents[i]` of `tree`, -1 for those of the last prefix token.
    `tree` has the nodes to compute: the last tokens of choices are not among them, for nothing follows them.
    """

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        self._choices = [tuple(choice) for choice in choices]
        inner = {choice[:end] for choice in self._choices for end in range(1, len(choice))}
        tokens: list[int] = []
        parents: list[int] = []
        computed: list[int] = []
        rows: dict[tuple[int, ...], int] = {(): -1}
        known: dict[tuple[int, ...], int] = {}
        # sorted order makes equal prefixes neighbours, and numbering in that order is depth-first preorder
        for choice in sorted(set(self._choices)):
            for prefix in (choice[:end] for end in range(1, len(choice) + 1)):
                if prefix in known:
                    continue
                known[prefix] = len(tokens)
                tokens.append(prefix[-1])
                parents.append(rows[prefix[:-1]])
                if prefix in inner:
                    rows[prefix] = len(computed)
                    computed.append(known[prefix])
        self._node_of = known
        self.tokens, self.parents = tuple(tokens), tuple(parents)
        self.tree = TokenTree(tuple(tokens[i] for i in computed), tuple(parents[i] for i in computed))

    def choices(self, found: Sequence[NodeScore], *, with_greedy: bool) -> list[ChoiceTokens]:
        """One entry per choice, in the order given; `found[i]` is what node i got from its parent's logits."""
        answers = []
        for choice in self._choices:
            nodes = [found[self._node_of[choice[:end]]] for end in range(1, len(choice) + 1)]
            is_greedy = all(node.is_best for node in nodes) if with_greedy else None
            answers.append(ChoiceTokens(choice, tuple(node.logprob for node in nodes), is_greedy))
        return answers


def split_choices(choices: Sequence[Sequence[int]], most_nodes: int) -> list[list[int]]:
    """Indices of the choices in groups whose tries stay near `most_nodes` tokens; similar choices stay together."""
    groups: list[list[int]] = []
    size = most_nodes
    for index in sorted(range(len(choices)), key=lambda i: tuple(choices[i])):
        if not groups or size + len(choices[index]) > most_nodes:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += len(choices[index])
    return groups


@dataclass
class ScoreJob:
    """A score request, split into tries that report their parts."""

    request: ScoreRequest
    sink: Sink
    groups: list[list[int]]
    tries: list[ChoiceTrie]
    timing: Timing = field(default_factory=Timing)
    sequences: list[scheduler.Sequence] = field(default_factory=list)
    found: list[list[NodeScore]] = field(default_factory=list)  # per trie and node
    unfinished: int = 0

    @classmethod
    def of(cls, request: ScoreRequest, sink: Sink) -> ScoreJob:
        groups = split_choices(request.choices, MOST_TRIE_NODES)
        tries = [ChoiceTrie([request.choices[i] for i in group]) for group in groups]
        empty = [[UNSCORED] * len(trie.tokens) for trie in tries]
        return cls(request, sink, groups, tries, found=empty, unfinished=len(tries))

    def result(self) -> ScoreResult:
        ordered: dict[int, ChoiceTokens] = {}
        for group, trie, found in zip(self.groups, self.tries, self.found, strict=True):
            answers = trie.choices(found, with_greedy=self.request.wants_greedy)
            ordered.update(zip(group, answers, strict=True))
        nodes = sum(len(trie.tokens) for trie in self.tries)
        usage = Usage(len(self.request.token_ids) + nodes, self.sequences[0].cached_tokens, 0, 0)
        choices = tuple(ordered[index] for index in range(len(self.request.choices)))
        return ScoreResult(choices, usage, self.timing.seconds())
