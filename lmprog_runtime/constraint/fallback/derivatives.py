"""Transitions: Brzozowski derivatives, computed when a state is first left by a byte class, and kept.

Source: Brzozowski, "Derivatives of Regular Expressions" (1964); Owens, Reppy, Turon, "Regular-expression derivatives
re-examined" (2009) for the byte classes. References make it a pushdown automaton whose stack is the tail of a
concatenation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from lmprog_runtime.constraint.fallback.nodes import (
    ALL_BYTES,
    ALT,
    AND,
    CAT,
    EMPTY,
    EPSILON,
    LEX,
    MEMBERS,
    NOT,
    REF,
    REP,
    SET,
    Nodes,
)
from lmprog_runtime.constraint.limits import MAX_NESTING, STATES, UNDEFINED, LimitReached, Limits

_UNKNOWN, _ALIVE, _DEAD = 0, 1, 2

Follow = Callable[[int, int], int]


class Derivatives(Nodes):
    """Nodes with transitions. In a sealed arena every state but EMPTY has a text that leads to acceptance."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.producible = ALL_BYTES  # bytes that the vocabulary can write
        self._transitions: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._expanded: dict[int, int] = {}
        self._life: dict[int, int] = {}
        self._raw: dict[int, int] = {}
        self.representatives = [0]

    def _forget_transitions(self) -> None:
        self._transitions, self._raw = {}, {}
        self.representatives = [self.classes.index(c) for c in range(self.class_count)]

    # -- first bytes ------------------------------------------------------------------------------------------------

    def first(self, x: int) -> int:
        """Bytes that may come first: all of them, and for intersections and complements perhaps more."""
        found = self._first.get(x)
        if found is None:
            found = self._first[x] = self._compute_first(x)
        return found

    def _compute_first(self, x: int) -> int:
        kind, args = self.kind[x], self.args[x]
        if kind == SET:
            return args[0]
        if kind == CAT:
            return self.first(args[0]) | (self.first(args[1]) if self.nullable[args[0]] else 0)
        if kind == ALT:
            return self._any_first(args)
        if kind == AND:
            mask = ALL_BYTES
            for member in args:
                mask &= self.first(member)
            return mask
        if kind in (REP, LEX):
            return self.first(args[0])
        if kind == REF:
            return self.first(self._definition(x))
        if kind == MEMBERS:
            return self.first(self.expand(x))
        return ALL_BYTES if kind == NOT else 0

    def _any_first(self, members: tuple[int, ...]) -> int:
        mask = 0
        for member in members:
            mask |= self.first(member)
        return mask

    def _definition(self, x: int) -> int:
        definition = self.definitions[self.args[x][0]]
        if definition < 0:
            raise LimitReached(UNDEFINED)
        return definition

    # -- transitions ------------------------------------------------------------------------------------------------

    def next_state(self, x: int, byte: int) -> int:
        """The derivative of a state by a byte; EMPTY when the byte is not allowed."""
        key = x << 8 | self.classes[byte]
        found = self._transitions.get(key)
        if found is None:
            found = self._derive(x, byte)
            self._transitions[x << 8 | self.classes[byte]] = found
        return found

    def _derive(self, x: int, byte: int) -> int:
        if not self.first(x) >> byte & 1:
            return EMPTY
        derived = self._derivative(x, byte, self.next_state)
        if self.is_sealed and self.kind[derived] in (AND, NOT) and not self._is_alive(derived):
            return EMPTY
        return derived

    def _raw_next(self, x: int, byte: int) -> int:
        """A derivative that may be empty without being EMPTY: the search for emptiness itself is made of them."""
        if not self.is_sealed or self.is_plain[x]:
            return self.next_state(x, byte)
        key = x << 8 | self.classes[byte]
        found = self._raw.get(key)
        if found is None:
            allowed = self.first(x) >> byte & 1
            found = self._raw[key] = self._derivative(x, byte, self._raw_next) if allowed else EMPTY
        return found

    def _derivative(self, x: int, byte: int, follow: Follow) -> int:
        self.check_time()
        kind, args = self.kind[x], self.args[x]
        if kind == SET:
            return EPSILON if args[0] >> byte & 1 else EMPTY
        if kind == CAT:
            return self._derive_concatenation(x, byte, follow)
        if kind == ALT:
            return self.alternate([follow(member, byte) for member in args])
        if kind == REP:
            child, low, high = args
            return self.concat2(follow(child, byte), self.repeat(child, max(low - 1, 0), max(high - 1, -1)))
        if kind == AND:
            return self.intersect([follow(member, byte) for member in args])
        if kind == NOT:
            return self.complement(follow(args[0], byte))
        if kind == LEX:
            return self.lexeme(follow(args[0], byte))
        if kind == REF:
            return follow(self._definition(x), byte)
        if kind == MEMBERS:
            return follow(self.expand(x), byte)
        return EMPTY

    def _derive_concatenation(self, x: int, byte: int, follow: Follow) -> int:
        """Along the spine for as long as it may be skipped: a loop, since a spine can be long."""
        parts = []
        while self.kind[x] == CAT:
            head, tail = self.args[x]
            if self.first(head) >> byte & 1:
                parts.append(self.concat2(follow(head, byte), tail))
            x = tail
            if not self.nullable[head]:
                return self.alternate(parts)
        parts.append(follow(x, byte))
        return self.alternate(parts)

    def expand(self, x: int) -> int:
        """The choice that a member list stands for."""
        found = self._expanded.get(x)
        if found is None:
            found = self._expanded[x] = self._expand_members(x)
        return found

    def _expand_members(self, x: int) -> int:
        index, seen, count = self.args[x]
        d = self.member_lists[index]
        after = count + 1 if d.high >= 0 else min(count + 1, max(d.low, 1))
        choices = [EPSILON] if self.nullable[x] else []
        body = []
        skipped_required = False
        for i in range(len(d.pairs)):
            if (seen >> i & 1) if d.any_order else (i < seen):
                continue
            then = self.members_from(index, seen | 1 << i if d.any_order else i + 1, after)
            body.append(self.concat2(d.pairs[i], then))
            if d.required[i] and not d.any_order:
                skipped_required = True
                break
        if d.extra and not skipped_required:
            then = self.members_from(index, seen if d.any_order else len(d.pairs), after)
            body.append(self.concat2(d.extra, then))
        if d.high < 0 or count < d.high:
            choices.append(self.concat2(d.separator if count else EPSILON, self.alternate(body)))
        return self.alternate(choices)

    def step(self, x: int, data: bytes) -> int:
        for byte in data:
            x = self.next_state(x, byte)
            if x == EMPTY:
                break
        return x

    def is_final(self, x: int) -> bool:
        allowed = self.first(x) & self.producible
        leaving = (b for b in self.representatives if allowed >> b & 1)
        return self.nullable[x] and all(self.next_state(x, b) == EMPTY for b in leaving)

    # -- emptiness --------------------------------------------------------------------------------------------------

    def _is_alive(self, x: int) -> bool:
        """Whether a derived intersection or complement has any text. At the limit the constraint is refused."""
        life = self._life.get(x, _UNKNOWN)
        if life == _UNKNOWN:
            empty = self.is_empty(x)
            if empty is None:
                raise LimitReached(STATES)
            life = _DEAD if empty else _ALIVE
            self._life[x] = life
        return life == _ALIVE

    def is_empty(self, x: int) -> bool | None:
        """Whether no text matches; None when that is not decided within `search_states` states."""
        if self._is_surely_alive(x):
            return False
        parents = {x: EMPTY}
        open_states = deque([(x, self._successors(x))])
        from_back = False
        while open_states:
            # Newest and oldest in turn: depth finds long texts, breadth is not led astray by recursion.
            from_back = not from_back
            state, successors = open_states[-1 if from_back else 0]
            try:
                after = next(successors, EMPTY)
            except LimitReached as error:
                if error.code != UNDEFINED:
                    raise
                return None
            if after == EMPTY:
                open_states.pop() if from_back else open_states.popleft()
            elif after not in parents and self._life.get(after) != _DEAD:
                parents[after] = state
                if self._is_surely_alive(after):
                    self._mark_alive(after, parents)
                    return False
                if len(parents) > self.limits.search_states:
                    return None
                open_states.append((after, self._successors(after)))
        if self.is_sealed:
            self._life.update(dict.fromkeys(parents, _DEAD))
        return True

    def _successors(self, state: int) -> Iterator[int]:
        """States one byte on, one at a time, since most searches end at an early one."""
        allowed = self.first(state) & self.producible
        for byte in self.representatives:
            if allowed >> byte & 1 and (after := self._raw_next(state, byte)) != EMPTY:
                yield after

    def _mark_alive(self, state: int, parents: dict[int, int]) -> None:
        while state != EMPTY and self.is_sealed:
            self._life[state] = _ALIVE
            state = parents[state]

    def _is_surely_alive(self, x: int, depth: int = MAX_NESTING) -> bool:
        """Alive by its shape and by what is known, looked at to a depth; False says nothing."""
        if self.nullable[x] or self.is_plain[x]:
            return x != EMPTY
        if depth == 0:
            return False
        while self.kind[x] == CAT:
            if not self._is_surely_alive(self.args[x][0], depth - 1):
                return False
            x = self.args[x][1]
        kind, args = self.kind[x], self.args[x]
        if self.nullable[x] or self.is_plain[x]:
            return x != EMPTY
        if kind in (REP, LEX):
            return self._is_surely_alive(args[0], depth - 1)
        if kind == ALT:
            return any(self._is_surely_alive(member, depth - 1) for member in args)
        if kind in (REF, MEMBERS):
            return self.is_sealed
        return self._life.get(x) == _ALIVE
