"""Fewer facets for the same objects: what multiplied branches of oneOf, not and if leave behind.

Branches that exclude each other by a discriminating member come, multiplied out, to facets that mostly cover each other
once it is seen that `kind is "a"` makes `kind is not "b"` superfluous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from lmprog_runtime.constraint.json_schema.facets import ObjectFacet, Rule
from lmprog_runtime.constraint.json_schema.goals import NEVER, Goal, Literal

MOST_COMPARED = 300
"""Facets are compared in pairs: beyond this, only those that are contradictory are dropped."""


class Absorption:
    """Drops superfluous parts of goals, impossible facets, and facets that others cover."""

    def __init__(self, is_disjoint: Callable[[Goal], bool]) -> None:
        self._is_disjoint = is_disjoint
        self._simple: dict[Goal, Goal] = {}

    def reduced(self, facets: Iterable[Any]) -> list[Any]:
        kept = dict.fromkeys(self._simplified(facet) for facet in facets if self._is_plausible(facet))
        return _uncovered(list(kept)) if len(kept) <= MOST_COMPARED else list(kept)

    def _is_plausible(self, facet: ObjectFacet) -> bool:
        """Whether no required member is seen to be impossible."""
        goals = dict(facet.named)
        return not any(len(goals.get(name, ())) > 1 and self._is_disjoint(goals[name]) for name in facet.required)

    def _simplified(self, facet: ObjectFacet) -> ObjectFacet:
        named = tuple((name, self._simple_goal(goal)) for name, goal in facet.named)
        return facet if named == facet.named else facet._replace(named=named)

    def _simple_goal(self, goal: Goal) -> Goal:
        """The goal without negations that the rest of it implies."""
        if len(goal) < 2 or all(literal.holds for literal in goal):
            return goal
        found = self._simple.get(goal)
        if found is None:
            found = goal
            for literal in goal:
                rest = tuple(other for other in found if other != literal)
                if not literal.holds and rest and self._is_disjoint((*rest, Literal(literal.node, True))):
                    found = rest
            self._simple[goal] = found
        return found


class _Demands(NamedTuple):
    """A facet as sets, to compare: the more there is in them, the fewer objects there are."""

    facet: ObjectFacet
    required: frozenset[str]
    rules: frozenset[Rule]
    some: frozenset[Rule]
    named: dict[str, frozenset[Literal]]

    def covers(self, other: _Demands) -> bool:
        return (
            self.required <= other.required
            and self.facet.low <= other.facet.low
            and (self.facet.high is None or (other.facet.high is not None and other.facet.high <= self.facet.high))
            and self.rules <= other.rules
            and self.some <= other.some
            and self.facet.evaluated == other.facet.evaluated
            and all(_is_weaker(goal, other.named.get(name, frozenset())) for name, goal in self.named.items())
        )


_NEVER = frozenset(NEVER)


def _is_weaker(goal: frozenset[Literal], other: frozenset[Literal]) -> bool:
    return goal <= other or other == _NEVER


def _uncovered(facets: Sequence[ObjectFacet]) -> list[ObjectFacet]:
    """The facets that no other one covers."""
    kept: list[_Demands] = []
    for facet in facets:
        demands = _demands(facet)
        if not any(other.covers(demands) for other in kept):
            kept = [other for other in kept if not demands.covers(other)]
            kept.append(demands)
    return [demands.facet for demands in kept]


def _demands(facet: ObjectFacet) -> _Demands:
    named = {name: frozenset(goal) for name, goal in facet.named}
    return _Demands(facet, frozenset(facet.required), frozenset(facet.rules), frozenset(facet.some), named)
