"""Hash-consed expressions over bytes: the nodes of the automaton, and the constructors that keep them in normal form.

An expression is an int. Equal ints are equal languages, so a state of the automaton is an expression and its
transitions are derivatives (derivatives.py). The C++ core (core/nodes.cpp) has the same constructors and normal form.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from lmprog_runtime.constraint.limits import (
    BYTES,
    MAX_NESTING,
    NESTING,
    STATES,
    TIME,
    WIDTH,
    LimitReached,
    Limits,
)

EMPTY, EPSILON = 0, 1
SET, CAT, ALT, REP, AND, NOT, REF, LEX, MEMBERS = range(2, 11)
ALL_BYTES = (1 << 256) - 1
FACTORED_WIDTH = 256
"""Alternations up to this wide are searched for common tails, which keeps derivatives of counted classes small."""

_NODE_BYTES = 300  # measured: lists, tuple and dictionary entry of one node


class MemberList(NamedTuple):
    """An object's members: see `Nodes.members`."""

    pairs: tuple[int, ...]
    required: tuple[bool, ...]
    extra: int
    separator: int
    low: int
    high: int  # -1: no bound
    any_order: bool


class Nodes:
    """The arena. Nothing is ever removed: a grammar's arena is dropped as a whole."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.kind: list[int] = []
        self.args: list[tuple[int, ...]] = []
        self.nullable: list[bool] = []
        self.left_depth: list[int] = []
        self.is_plain: list[bool] = []  # no intersection, complement, reference inside: not EMPTY means it has a text
        self.definitions: list[int] = []  # of references; -1: not yet
        self.member_lists: list[MemberList] = []
        self.classes = [0] * 256  # byte -> class: no set of the arena tells two bytes of a class apart
        self.class_count = 1
        self.is_sealed = False
        self._index: dict[tuple[int, ...], int] = {}
        self._ticks = 0
        self._deadline = time.thread_time() + limits.compile_seconds
        self._add((0,), False, 0)
        self._add((1,), True, 0)
        self.everything = self._cons((NOT, EMPTY), True, 1)

    # -- storage ----------------------------------------------------------------------------------------------------

    def _add(self, key: tuple[int, ...], nullable: bool, left_depth: int) -> int:
        count = len(self.kind)
        if left_depth > MAX_NESTING:
            raise LimitReached(NESTING)
        if count >= self.limits.nodes:
            raise LimitReached(STATES)
        if count * _NODE_BYTES > self.limits.arena_bytes:
            raise LimitReached(BYTES)
        self.check_time()
        self.kind.append(key[0])
        self.args.append(key[1:])
        self.nullable.append(nullable)
        self.left_depth.append(left_depth)
        self.is_plain.append(self._is_plain(key))
        return count

    def _is_plain(self, key: tuple[int, ...]) -> bool:
        kind = key[0]
        if kind in (CAT, ALT):
            return all(self.is_plain[x] for x in key[1:])
        if kind in (REP, LEX):
            return self.is_plain[key[1]]
        return kind <= SET

    def check_time(self) -> None:
        self._ticks += 1
        if not self._ticks & 63 and time.thread_time() > self._deadline:
            raise LimitReached(TIME)

    def start_clock(self, seconds: float) -> None:
        self._deadline = time.thread_time() + seconds

    def _cons(self, key: tuple[int, ...], nullable: bool, left_depth: int) -> int:
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = self._add(key, nullable, left_depth)
        return found

    @property
    def nbytes(self) -> int:
        return len(self.kind) * _NODE_BYTES

    # -- constructors -----------------------------------------------------------------------------------------------

    def byte_set(self, mask: int) -> int:
        """One byte out of a set of 256 bits."""
        if not mask:
            return EMPTY
        key = (SET, mask)
        if key not in self._index:
            self._split_classes(mask)
        return self._cons(key, False, 0)

    def _split_classes(self, mask: int) -> None:
        """Byte classes get finer with each new set; what is known of transitions by class is then void."""
        first: dict[tuple[int, int], int] = {}
        classes = [first.setdefault((c, mask >> b & 1), len(first)) for b, c in enumerate(self.classes)]
        if len(first) != self.class_count:
            self.classes, self.class_count = classes, len(first)
            self._forget_transitions()

    def _forget_transitions(self) -> None:
        """For the subclass that keeps them."""

    def concat2(self, a: int, b: int) -> int:
        if a == EMPTY or b == EMPTY:
            return EMPTY
        if a == EPSILON:
            return b
        if b == EPSILON:
            return a
        spine = []
        while self.kind[a] == CAT:
            head, a = self.args[a]
            spine.append(head)
        spine.append(a)
        for head in reversed(spine):
            depth = max(self.left_depth[head] + 1, self.left_depth[b] if self.nullable[head] else 0)
            b = self._cons((CAT, head, b), self.nullable[head] and self.nullable[b], depth)
        return b

    def concat(self, parts: Sequence[int]) -> int:
        result = EPSILON
        for part in reversed(parts):
            result = self.concat2(part, result)
        return result

    def literal(self, data: bytes) -> int:
        return self.concat([self.byte_set(1 << byte) for byte in data])

    def alternate(self, members: Iterable[int]) -> int:
        found = self._flatten(ALT, members)
        if self.everything in found:
            return self.everything
        self._merge_sets(found)
        if 1 < len(found) <= FACTORED_WIDTH:
            found = self._factored(found)
        if EPSILON in found and any(self.nullable[x] for x in found if x != EPSILON):
            found.discard(EPSILON)
        return self._list_node(ALT, found, any(self.nullable[x] for x in found), EMPTY)

    def _flatten(self, kind: int, members: Iterable[int]) -> set[int]:
        found: set[int] = set()
        for x in members:
            if self.kind[x] == kind:
                found.update(self.args[x])
            elif x != EMPTY:
                found.add(x)
        return found

    def _merge_sets(self, found: set[int]) -> None:
        sets = [x for x in found if self.kind[x] == SET]
        if len(sets) > 1:
            mask = 0
            for x in sets:
                mask |= self.args[x][0]
            found.difference_update(sets)
            found.add(self.byte_set(mask))

    def _factored(self, found: set[int]) -> set[int]:
        """x.r | y.r is (x|y).r, and x{0,3} | x{2,5} is x{0,5}."""
        by_tail: dict[int, list[int]] = {}
        for x in found:
            if self.kind[x] == CAT:
                by_tail.setdefault(self.args[x][1], []).append(x)
        for tail, group in by_tail.items():
            if len(group) > 1:
                found = found.difference(group)
                found.add(self.concat2(self.alternate([self.args[x][0] for x in sorted(group)]), tail))
        return self._merged_counts(found)

    def _merged_counts(self, found: set[int]) -> set[int]:
        by_child: dict[int, list[int]] = {}
        for x in found:
            if self.kind[x] == REP:
                by_child.setdefault(self.args[x][0], []).append(x)
        for child, group in by_child.items():
            if len(group) > 1:
                found = found.difference(group)
                found.update(self.repeat(child, low, high) for low, high in _union([self.args[x][1:] for x in group]))
        return found

    def _list_node(self, kind: int, found: set[int], nullable: bool, neutral: int) -> int:
        if not found:
            return neutral
        if len(found) == 1:
            return next(iter(found))
        if len(found) > self.limits.width:
            raise LimitReached(WIDTH)
        depth = 1 + max(self.left_depth[x] for x in found)
        return self._cons((kind, *sorted(found)), nullable, depth)

    def intersect(self, members: Iterable[int]) -> int:
        """The intersection, without a look at whether it is empty (see `Derivatives.is_empty`)."""
        members = list(members)
        if EMPTY in members:
            return EMPTY
        found = self._flatten(AND, members)
        found.discard(self.everything)
        sets = [x for x in found if self.kind[x] == SET]
        if len(sets) > 1:
            mask = ALL_BYTES
            for x in sets:
                mask &= self.args[x][0]
            found.difference_update(sets)
            found.add(self.byte_set(mask))
        if EMPTY in found or any(self.kind[x] == NOT and self.args[x][0] in found for x in found):
            return EMPTY
        nullable = all(self.nullable[x] for x in found)
        if EPSILON in found:
            return EPSILON if nullable else EMPTY
        return self._list_node(AND, found, nullable, self.everything)

    def complement(self, a: int) -> int:
        if self.kind[a] == NOT:
            return self.args[a][0]
        return self._cons((NOT, a), not self.nullable[a], self.left_depth[a] + 1)

    def repeat(self, a: int, low: int, high: int) -> int:
        """a{low,high}; high -1 has no bound. The counters stay counters: nothing is unrolled."""
        if high == 0 or a == EPSILON:
            return EPSILON
        if a == EMPTY:
            return EPSILON if low == 0 else EMPTY
        if low == 1 and high == 1:
            return a
        if self.nullable[a]:
            low = 0
        if low == 0 and high == 1:
            return self.alternate([EPSILON, a])
        if self.kind[a] == REP and self.args[a][1:] == (0, -1):
            return a
        return self._cons((REP, a, low, high), low == 0, self.left_depth[a] + 1)

    def lexeme(self, a: int) -> int:
        if a in (EMPTY, EPSILON) or self.kind[a] == LEX:
            return a
        return self._cons((LEX, a), self.nullable[a], self.left_depth[a] + 1)

    def reference(self, nullable: bool) -> int:
        self.definitions.append(-1)
        return self._cons((REF, len(self.definitions) - 1), nullable, 1)

    def define(self, reference: int, a: int) -> None:
        self.definitions[self.args[reference][0]] = a

    def members(self, definition: MemberList) -> int:
        self.member_lists.append(definition)
        return self.members_from(len(self.member_lists) - 1, 0, 0)

    def members_from(self, index: int, seen: int, count: int) -> int:
        """What may follow once `seen` has been: a position when members come in order, else a bit set."""
        d = self.member_lists[index]
        left = [i for i in range(len(d.pairs)) if (not seen >> i & 1 if d.any_order else i >= seen)]
        must = sum(d.required[i] for i in left)
        if (count + len(left) < d.low and not d.extra) or (d.high >= 0 and count + must > d.high):
            return EMPTY
        parts = [d.separator, d.extra, *d.pairs]
        depth = 3 + max(self.left_depth[x] for x in parts)
        return self._cons((MEMBERS, index, seen, count), must == 0 and count >= d.low, depth)


def _union(intervals: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Union of count intervals (low, high), high -1 without bound."""
    unbounded = float("inf")
    spans = sorted((low, high if high >= 0 else unbounded) for low, high in intervals)
    merged: list[tuple[int, float]] = []
    for low, high in spans:
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return [(low, -1 if high == unbounded else int(high)) for low, high in merged]
