"""The shortest text of a state: how a generation can end soonest.

The length of an expression follows from its parts; only intersections and complements are searched. Of all texts of
that length, the first in the order of bytes is taken: what is left of it behind a byte is the text of the state there.
"""

from __future__ import annotations

from lmprog_runtime.constraint.fallback.derivatives import Derivatives
from lmprog_runtime.constraint.fallback.nodes import ALT, CAT, EMPTY, LEX, MEMBERS, REF, REP, SET

FAR = 1 << 30
"""The length where there is no text, or none within the limits."""

MOST_SEARCHED = 5_000
"""States of one search."""


class Shortest:
    """Of one sealed arena, made when it is first asked for."""

    def __init__(self, nodes: Derivatives) -> None:
        self._nodes = nodes
        self._known: dict[int, int] = {}
        self._searched: dict[int, tuple[int, int]] = {}  # length, and the byte that comes first
        self._references = [FAR] * len(nodes.definitions)
        self._solve_references()

    def length(self, x: int) -> int:
        """Parts first, with a stack of its own: texts are nested as deep as they are long."""
        waiting = [x]
        while waiting:
            top = waiting[-1]
            missing = [] if top in self._known else [part for part in self._parts(top) if part not in self._known]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if top not in self._known:
                self._nodes.check_time()
                self._known[top] = min(self._combine(top), FAR)
        return self._known[x]

    def text(self, x: int) -> bytes:
        """`length(x)` must not be FAR."""
        found = bytearray()
        while not self._nodes.nullable[x]:
            self.length(x)
            found.append(self._first_byte(x))
            x = self._nodes.next_state(x, found[-1])
        return bytes(found)

    def _solve_references(self) -> None:
        """The least fixpoint, from above. Source: Knuth, "A Generalization of Dijkstra's Algorithm" (1977); rounds, not
        a heap."""
        before: list[int] = []
        while before != self._references:
            before = list(self._references)
            self._known.clear()
            for i, definition in enumerate(self._nodes.definitions):
                if definition >= 0:
                    self._references[i] = self.length(definition)

    def _parts(self, x: int) -> tuple[int, ...]:
        """What the length is made of; nothing where it is known at once or searched."""
        kind, args = self._nodes.kind[x], self._nodes.args[x]
        if self._nodes.nullable[x]:
            return ()
        if kind in (CAT, ALT):
            return args
        if kind in (REP, LEX):
            return args[:1]
        if kind == MEMBERS:
            members = self._nodes.member_lists[args[0]]
            return (*members.pairs, members.extra, members.separator)
        return ()

    def _combine(self, x: int) -> int:
        kind, args = self._nodes.kind[x], self._nodes.args[x]
        if self._nodes.nullable[x]:
            return 0
        if kind == SET:
            return 1
        if kind == CAT:
            return sum(self._known[part] for part in args)
        if kind == ALT:
            return min(self._known[part] for part in args)
        if kind == REP:
            return args[1] * self._known[args[0]]
        if kind == LEX:
            return self._known[args[0]]
        if kind == REF:
            return self._references[args[0]]
        if kind == MEMBERS:
            return self._members_length(x)
        return FAR if x == EMPTY else self._search(x)[0]

    def _members_length(self, x: int) -> int:
        """The required members, and the cheapest of the others for as long as there are too few."""
        index, seen, count = self._nodes.args[x]
        d = self._nodes.member_lists[index]
        unseen = [i for i in range(len(d.pairs)) if not ((seen >> i & 1) if d.any_order else (i < seen))]
        chosen = [self._known[d.pairs[i]] for i in unseen if d.required[i]]
        others = sorted(self._known[d.pairs[i]] for i in unseen if not d.required[i])
        missing = max(d.low - count - len(chosen), 0)
        extra = self._known[d.extra]
        chosen += sorted([*others, *[extra] * missing])[:missing]
        return sum(chosen) + (len(chosen) - (count == 0)) * self._known[d.separator]

    def _first_byte(self, x: int) -> int:
        """Of the text. Goes to what comes first only, so the nesting limit bounds the recursion."""
        nodes = self._nodes
        while nodes.kind[x] == CAT:
            head, tail = nodes.args[x]
            x = tail if nodes.nullable[head] else head
        kind, args = nodes.kind[x], nodes.args[x]
        if kind == SET:
            return (args[0] & -args[0]).bit_length() - 1
        if kind == ALT:
            least = self.length(x)
            return min(self._first_byte(member) for member in args if self.length(member) == least)
        if kind in (REP, LEX):
            return self._first_byte(args[0])
        if kind == REF:
            return self._first_byte(nodes.definitions[args[0]])
        if kind == MEMBERS:
            choice = nodes.expand(x)
            self.length(choice)
            return self._first_byte(choice)
        return self._search(x)[1]

    def _search(self, x: int) -> tuple[int, int]:
        """By breadth, bytes in order: the first path to a state is the first text that leads there. What lies on the
        path found is kept too, since the generation goes along it."""
        if x in self._searched:
            return self._searched[x]
        steps = [(x, -1, 0)]  # state, index of the step before, byte
        seen = {x}
        for at, (state, _, _) in enumerate(steps):
            if len(steps) >= MOST_SEARCHED:
                break
            for byte in self._leaving(state):
                after = self._nodes.next_state(state, byte)
                if after == EMPTY or after in seen:
                    continue
                seen.add(after)
                steps.append((after, at, byte))
                if self._nodes.nullable[after]:
                    self._keep_path(steps)
                    return self._searched[x]
        self._searched[x] = (FAR, 0)
        return self._searched[x]

    def _leaving(self, state: int) -> list[int]:
        """The first byte of each class that may come, in order."""
        allowed = self._nodes.first(state) & self._nodes.producible
        first: dict[int, int] = {}
        for byte in range(256):
            if allowed >> byte & 1:
                first.setdefault(self._nodes.classes[byte], byte)
        return list(first.values())

    def _keep_path(self, steps: list[tuple[int, int, int]]) -> None:
        _, before, byte = steps[-1]
        length = 1
        while before >= 0:
            state, earlier, entered_by = steps[before]
            self._searched[state] = (length, byte)
            before, byte, length = earlier, entered_by, length + 1
