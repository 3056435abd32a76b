"""The sequences that wait, in the order in which they should be admitted.

No request starves: one that later arrivals have overtaken by `aging_tokens` computed tokens is served in order of
arrival, before all that have not been. So it starts once those tokens, what the sequences then running still generate,
and the work that arrived no later than itself are computed, whatever the policy prefers. Tokens and not seconds are
counted, so an order can be replayed; and requests that came together may be put in any order without ageing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from lmprog_runtime.cache.node import Node, path
from lmprog_runtime.cache.radix_tree import Match
from lmprog_runtime.cache.registry import named
from lmprog_runtime.scheduler.sequence import Sequence

Rank = tuple[Any, ...]
"""Smallest first."""

_MEASURED_PER_STEP = 32
_BRANCH_END = (1, 0)  # after every (-weight, serial)
_ARRIVAL = attrgetter("arrival")
_RANK = attrgetter("rank")


class Entry:
    """Sequences that came together and share a place in line."""

    __slots__ = ("arrival", "arrival_clock", "known", "members", "nodes", "overtaken", "priority", "rank")

    def __init__(self, members: list[Sequence], clock: int) -> None:
        self.members = members
        self.priority = max(sequence.priority for sequence in members)
        self.arrival = members[0].arrival
        self.arrival_clock = clock
        self.overtaken = 0  # tokens computed for later arrivals
        self.known = 0  # tokens of the first one's prefix in the cache, when last looked
        self.nodes: list[Node] = []  # along that prefix
        self.rank: Rank = ()

    def note(self, match: Match | None) -> None:
        self.known = 0 if match is None else match.length + match.promised
        self.nodes = [] if match is None else path(match.node)


Weights = Counter[Node]
Preference = Callable[[Entry, Weights], Rank]


def first_come(_: Entry, __: Weights) -> Rank:
    return ()


def longest_prefix(entry: Entry, _: Weights) -> Rank:
    return (-entry.known,)


def heaviest_branch(entry: Entry, weights: Weights) -> Rank:
    """Depth-first over the tree, into the branch with the most waiting entries first; what leaves it early, last."""
    return ((*((-weights[node], node.serial) for node in entry.nodes), _BRANCH_END),)


POLICIES: dict[str, Preference] = {"fcfs": first_come, "lpm": longest_prefix, "dfs-weight": heaviest_branch}


class WaitingLine:
    def __init__(self, policy: str, aging_tokens: int, measure: Callable[[Sequence], Match | None]) -> None:
        """`measure` finds what the cache knows of a sequence now."""
        self._preference = named("scheduling policy", policy, POLICIES)
        self._measures = self._preference is not first_come
        self._aging_tokens = aging_tokens
        self._measure = measure
        self._resumed: list[Sequence] = []  # preempted ones
        self._arrived: list[Entry] = []  # by arrival
        self._preferred: list[Entry] = []  # by rank
        self._weights: Weights = Counter()
        self._next = 0  # whose prefix is measured next
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, members: list[Sequence], clock: int) -> None:
        entry = Entry(members, clock)
        for sequence in members:
            sequence.entry, sequence.arrival_clock = entry, clock
        if self._measures:
            entry.note(self._measure(members[0]))
        entry.rank = self._rank(entry)
        self._arrived.append(entry)
        insort(self._preferred, entry, key=_RANK)
        self._count += len(members)

    def resume(self, sequence: Sequence) -> None:
        """A preempted sequence: in front of all that never ran."""
        insort(self._resumed, sequence, key=service_order)
        self._count += 1

    def remove(self, sequence: Sequence) -> None:
        self._count -= 1
        entry = sequence.entry
        if entry is None:
            self._resumed.remove(sequence)
            return
        sequence.entry = None
        entry.members.remove(sequence)
        if not entry.members:
            del self._arrived[bisect_left(self._arrived, entry.arrival, key=_ARRIVAL)]
            del self._preferred[bisect_left(self._preferred, entry.rank, key=_RANK)]

    def overtake(self, sequence: Sequence, tokens: int) -> None:
        """`tokens` are computed for a sequence: note it for those that arrived before it and still wait."""
        for entry in self._arrived:
            if entry.arrival_clock >= sequence.arrival_clock:
                break
            entry.overtaken += tokens

    def candidates(self) -> Iterator[Sequence]:
        """Best first. Sequences may be removed on the way."""
        if self._measures:
            self._measure_some()
        yield from self._resumed.copy()
        for entry in self._arrived.copy():
            if entry.overtaken < self._aging_tokens:
                break
            yield from entry.members.copy()
        for entry in self._preferred.copy():
            if entry.overtaken < self._aging_tokens:
                yield from entry.members.copy()

    def _rank(self, entry: Entry) -> Rank:
        return (-entry.priority, *self._preference(entry, self._weights), entry.arrival)

    def _measure_some(self) -> None:
        """Look some prefixes up again: the cache changes, and looking all of a long line up each time costs too much.
        When all have been, put them in order anew."""
        for _ in range(min(_MEASURED_PER_STEP, len(self._arrived))):
            if self._next >= len(self._arrived):
                self._next = 0
            entry = self._arrived[self._next]
            entry.note(self._measure(entry.members[0]))
            self._next += 1
            if self._next >= len(self._arrived):
                self._sort()

    def _sort(self) -> None:
        self._weights = Counter(node for entry in self._arrived for node in entry.nodes)
        for entry in self._arrived:
            entry.rank = self._rank(entry)
        self._preferred.sort(key=_RANK)


def service_order(sequence: Sequence) -> Rank:
    """Among those that run or ran: by priority, then by arrival."""
    return (-sequence.priority, sequence.arrival)
