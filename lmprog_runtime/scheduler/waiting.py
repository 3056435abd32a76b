"""The sequences that wait, in the order in which they should be admitted.

Time is counted in scheduled rows, so an order can be replayed. A sequence that has waited for `aging_tokens` of them is
served in order of arrival, before all that have not: whatever the policy prefers, it starts once those rows and the
work that arrived before it are computed.
"""

from __future__ import annotations

import difflib
from bisect import insort
from collections.abc import Callable

from lmprog_runtime.scheduler.sequence import Sequence

Rank = tuple[float, ...]
"""Smallest first."""

_REFRESHED_PER_STEP = 32


def arrival_order(sequence: Sequence) -> Rank:
    """Preempted ones first, then by priority, then by arrival."""
    return (not sequence.admitted_before, -sequence.priority, sequence.arrival)


def first_come(_: Sequence) -> Rank:
    return ()


def longest_prefix(sequence: Sequence) -> Rank:
    return (-sequence.lead.known_prefix,)


POLICIES: dict[str, Callable[[Sequence], Rank]] = {"fcfs": first_come, "lpm": longest_prefix}


class WaitingLine:
    def __init__(self, policy: str, aging_tokens: int, measure: Callable[[Sequence], int]) -> None:
        """`measure` gives the length of a sequence's prefix that the cache knows now."""
        if policy not in POLICIES:
            near = difflib.get_close_matches(policy, POLICIES, n=1)
            guess = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(POLICIES)}."
            raise ValueError(f"There is no scheduling policy {policy!r}; {guess}")
        self._preference = POLICIES[policy]
        self._measures = policy != "fcfs"
        self._aging_tokens = aging_tokens
        self._measure = measure
        self._line: list[Sequence] = []  # in order of arrival
        self._next = 0  # whose prefix is measured again next

    def add(self, sequence: Sequence) -> None:
        if self._measures:
            sequence.known_prefix = self._measure(sequence)
        insort(self._line, sequence, key=arrival_order)

    def remove(self, sequence: Sequence) -> None:
        self._line.remove(sequence)

    def candidates(self, clock: int) -> list[Sequence]:
        """Best first; a copy."""
        if self._measures:
            self._refresh()
        return sorted(self._line, key=lambda sequence: self._rank(sequence, clock))

    def _rank(self, sequence: Sequence, clock: int) -> Rank:
        if sequence.admitted_before:
            return (0, -sequence.priority, sequence.arrival)
        if clock - sequence.arrival_clock >= self._aging_tokens:
            return (1, sequence.arrival)
        return (2, -sequence.priority, *self._preference(sequence), sequence.arrival)

    def _refresh(self) -> None:
        """Measure some prefixes again: the cache changes, and measuring a long line in each step costs too much."""
        for _ in range(min(_REFRESHED_PER_STEP, len(self._line))):
            self._next = (self._next + 1) % len(self._line)
            sequence = self._line[self._next]
            sequence.known_prefix = self._measure(sequence)

    def __len__(self) -> int:
        return len(self._line)
