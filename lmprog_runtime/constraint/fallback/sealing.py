"""Sealing, the last step of building: afterwards every state but EMPTY can reach acceptance with this vocabulary.

Sets lose the bytes that the vocabulary cannot write, references without any finite text become EMPTY, and so do empty
intersections; the constructors then drop what contained them. This is why generation has no dead ends.
"""

from __future__ import annotations

from lmprog_runtime.constraint.fallback.derivatives import Derivatives
from lmprog_runtime.constraint.fallback.nodes import (
    ALT,
    AND,
    CAT,
    EMPTY,
    LEX,
    MEMBERS,
    NOT,
    REF,
    REP,
    SET,
)
from lmprog_runtime.constraint.limits import LEFT_RECURSION, MAX_NESTING, NESTING, LimitReached


class Sealing(Derivatives):
    def seal(self, root: int, producible: int) -> int:
        """The root after pruning; EMPTY when nothing can be written. `producible`: 256 bits, the vocabulary's bytes."""
        self._split_classes(producible)
        self.producible = producible
        order = self._reachable(root)
        self._check_left_recursion(order)
        dead = self._unproductive(order)
        while True:
            root = self._rewrite(root, order, dead)
            self.is_sealed = True
            order = self._reachable(root)
            dead = {x for x in order if self.kind[x] in (AND, NOT) and not self._is_alive(x)}
            if not dead:
                return root
            dead |= self._unproductive(order, dead)

    # -- the graph --------------------------------------------------------------------------------------------------

    def children(self, x: int) -> tuple[int, ...]:
        kind, args = self.kind[x], self.args[x]
        if kind in (CAT, ALT, AND):
            return args
        if kind in (REP, NOT, LEX):
            return args[:1]
        if kind == MEMBERS:
            d = self.member_lists[args[0]]
            return (d.separator, d.extra, *d.pairs)
        return ()

    def _reachable(self, root: int) -> list[int]:
        """Every node under the root, through references too; children come before their parents."""
        order: list[int] = []
        seen: set[int] = set()
        roots = [root]
        while roots:
            stack = [(roots.pop(), False)]
            while stack:
                x, is_done = stack.pop()
                if is_done:
                    order.append(x)
                elif x not in seen:
                    seen.add(x)
                    stack.append((x, True))
                    stack += [(child, False) for child in self.children(x)]
                    if self.kind[x] == REF:
                        roots.append(self._definition(x))
        return order

    def _check_left_recursion(self, order: list[int]) -> None:
        """Refuse references that come back to themselves before a byte is read: their derivative would not end."""
        left = self._left_references(order)
        depth: dict[int, int] = {}
        for start in (x for x in order if self.kind[x] == REF):
            stack = [start]
            while stack:
                x = stack[-1]
                targets = left[self._definition(x)]
                missing = [y for y in targets if y not in depth]
                if x not in depth and missing:
                    if any(y in stack for y in missing):
                        raise LimitReached(LEFT_RECURSION)
                    stack.append(missing[0])
                    continue
                below = max((depth[y] for y in targets), default=0)
                depth[x] = below + 1 + self.left_depth[self._definition(x)]
                if depth[x] > MAX_NESTING:
                    raise LimitReached(NESTING)
                stack.pop()

    def _left_references(self, order: list[int]) -> dict[int, frozenset[int]]:
        """References that a node reaches without reading a byte."""
        left: dict[int, frozenset[int]] = {}
        for x in order:
            if self.kind[x] == REF:
                left[x] = frozenset({x})
            elif self.kind[x] == CAT:
                head, tail = self.args[x]
                left[x] = left[head] | left[tail] if self.nullable[head] else left[head]
            else:
                left[x] = frozenset().union(*(left[child] for child in self.children(x)))
        return left

    # -- productivity -----------------------------------------------------------------------------------------------

    def _unproductive(self, order: list[int], dead: set[int] = frozenset()) -> set[int]:  # type: ignore[assignment]
        """References that have no finite text: the least fixpoint, with intersections taken to have some."""
        alive: set[int] = set()
        references = [x for x in order if self.kind[x] == REF]
        while True:
            productive: dict[int, bool] = {}
            for x in order:
                productive[x] = x not in dead and self._is_productive_given(x, productive, alive)
            found = {x for x in references if productive[self._definition(x)]}
            if found == alive:
                return set(references) - alive
            alive = found

    def _is_productive_given(self, x: int, productive: dict[int, bool], alive: set[int]) -> bool:
        kind, args = self.kind[x], self.args[x]
        if kind == REF:
            return x in alive
        if kind == CAT:
            return productive[args[0]] and productive[args[1]]
        if kind == ALT:
            return any(productive[member] for member in args)
        if kind in (REP, LEX):
            return self.nullable[x] or productive[args[0]]
        if kind == MEMBERS:
            return self._can_be_filled(x, productive)
        if kind == SET:
            return bool(args[0] & self.producible)
        return x != EMPTY

    def _can_be_filled(self, x: int, productive: dict[int, bool]) -> bool:
        d = self.member_lists[self.args[x][0]]
        usable = sum(productive[pair] for pair in d.pairs)
        has_required = all(productive[pair] for pair, required in zip(d.pairs, d.required, strict=True) if required)
        return has_required and (usable >= d.low or productive[d.extra])

    # -- rewriting --------------------------------------------------------------------------------------------------

    def _rewrite(self, root: int, order: list[int], dead: set[int]) -> int:
        new: dict[int, int] = {}
        for x in order:
            new[x] = EMPTY if x in dead else self._rebuilt(x, new)
        for x in order:
            if self.kind[x] == REF:
                self.define(x, new[self._definition(x)])
        self._first, self._life, self._expanded = {}, {}, {}
        self._forget_transitions()
        return new[root]

    def _rebuilt(self, x: int, new: dict[int, int]) -> int:
        kind, args = self.kind[x], self.args[x]
        if kind == SET:
            return self.byte_set(args[0] & self.producible)
        if kind == CAT:
            return self.concat2(new[args[0]], new[args[1]])
        if kind == ALT:
            return self.alternate([new[member] for member in args])
        if kind == AND:
            return self.intersect([new[member] for member in args])
        if kind == NOT:
            return self.complement(new[args[0]])
        if kind == REP:
            return self.repeat(new[args[0]], args[1], args[2])
        if kind == LEX:
            return self.lexeme(new[args[0]])
        if kind == MEMBERS:
            return self._members(x, new)
        return x

    def _members(self, x: int, new: dict[int, int]) -> int:
        """A member list over other parts, without the members that cannot be."""
        d = self.member_lists[self.args[x][0]]
        pairs = [(new[pair], required) for pair, required in zip(d.pairs, d.required, strict=True)]
        if any(pair == EMPTY and required for pair, required in pairs):
            return EMPTY
        kept = [(pair, required) for pair, required in pairs if pair != EMPTY]
        definition = d._replace(
            pairs=tuple(pair for pair, _ in kept),
            required=tuple(required for _, required in kept),
            extra=new[d.extra],
            separator=new[d.separator],
        )
        return self.members(definition)
