"""Arrays: a prefix and a rest, counted; items that `contains` counts; items that must differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema.context import opposite
from lmprog_runtime.constraint.json_schema.facets import ArrayFacet, Contains, item_goal, least
from lmprog_runtime.constraint.json_schema.goals import NEVER, Goal, both
from lmprog_runtime.constraint.json_schema.layouts import Layout
from lmprog_runtime.constraint.json_schema.plans import Compiled, HasInstance, Plan
from lmprog_runtime.errors import ConstraintTooLarge, ConstraintUnsupported

EMPTY, EPSILON = Expressions.EMPTY, Expressions.EPSILON

MOST_VALUES = 64
"""Constants among which items can be told to differ."""


class Brackets:
    """Writes arrays in a layout."""

    def __init__(self, expressions: Expressions, layout: Layout) -> None:
        self.expressions = expressions
        self.comma = layout.comma
        self._gap = layout.gap
        self._open = expressions.literal(b"[")
        self._close = expressions.literal(b"]")

    def enclosed(self, items: int, may_be_empty: bool) -> int:
        """An array of the items, one or more with their separators; or of none."""
        e = self.expressions
        inner = e.concat(items, self._gap, self._close)
        return e.concat(self._open, self._gap, e.alternate((inner, self._close if may_be_empty else EMPTY)))


class SequencePlan:
    """Items by position."""

    def __init__(self, facet: ArrayFacet, brackets: Brackets) -> None:
        self._facet = facet
        self._brackets = brackets
        self.goals: Iterable[Goal] = (*facet.prefix, facet.rest)

    def can_be_filled(self, has_instance: HasInstance) -> bool:
        facet = self._facet
        needed = dict.fromkeys(item_goal(facet, index) for index in range(min(facet.low, len(facet.prefix) + 1)))
        return (facet.high is None or facet.low <= facet.high) and all(has_instance(goal) for goal in needed)

    def build(self, compiled: Compiled) -> int:
        low, high = self._facet.low, self._facet.high
        items = [compiled(goal) for goal in self._facet.prefix]
        rest = compiled(self._facet.rest)
        stop = next((index for index, item in enumerate([*items, rest]) if item == EMPTY), None)
        high = least(high, stop)
        if high is not None:
            if low > high:
                return EMPTY
            items = items[:high]
        return self._brackets.enclosed(self._items(items, rest, low, high), low == 0)

    def _items(self, items: list[int], rest: int, low: int, high: int | None) -> int:
        e, comma = self._brackets.expressions, self._brackets.comma
        if high == 0:
            return EMPTY
        if not items:
            more = e.repeat(e.concat(comma, rest), max(low - 1, 0), None if high is None else high - 1)
            return e.concat(rest, more)
        count = len(items)
        found = e.repeat(e.concat(comma, rest), max(low - count, 0), None if high is None else high - count)
        for index in range(count - 1, 0, -1):
            found = e.concat(comma, items[index], found)
            if low <= index:
                found = e.optional(found)
        return e.concat(items[0], found)


class _State(NamedTuple):
    position: int  # of the next item; the last position stands for itself and all that follow
    counts: tuple[int, ...]  # of items that each `contains` has counted, saturating


class _Step(NamedTuple):
    goal: Goal
    then: _State


class CountedPlan:
    """Items by position, of which some are counted.

    A state is a position and a counter per `contains`. An item that counts is told from one that does not by the
    negation of the goal, unless there is no upper bound: then counting too few is harmless.
    """

    def __init__(self, facet: ArrayFacet, brackets: Brackets, most_states: int, most_loops: int | None) -> None:
        """most_loops: how often an item may come that changes neither position nor counters; None: without end."""
        self._facet = facet
        self._brackets = brackets
        self._most_loops = most_loops
        starts = [part.start for part in facet.contains]
        self._last = max(1, len(facet.prefix), facet.low, facet.high or 0, *starts)
        self._caps = [part.low if part.high is None else part.high for part in facet.contains]
        size = self._last + 1
        for cap in self._caps:
            size *= cap + 1
        if size > most_states:
            raise ConstraintTooLarge(
                f"contains needs {size} states of an array with these bounds, over {most_states}; use smaller ones."
            )
        self._steps = {state: list(self._steps_from(state)) for state in self._states()}
        self.goals: Iterable[Goal] = dict.fromkeys(step.goal for steps in self._steps.values() for step in steps)

    def _states(self) -> Iterator[_State]:
        """All states, those that come later first."""
        counters = [range(cap, -1, -1) for cap in self._caps]
        for position in range(self._last, -1, -1):
            for counts in product(*counters):
                yield _State(position, counts)

    def _steps_from(self, state: _State) -> Iterator[_Step]:
        if self._facet.high is not None and state.position >= self._facet.high:
            return
        position = min(state.position + 1, self._last)
        goals = {state.counts: item_goal(self._facet, state.position)}
        for index, part in enumerate(self._facet.contains):
            goals = _told_apart(goals, index, part) if self._counts(part, state, index) else goals
        for counts, goal in goals.items():
            if goal != NEVER:
                yield _Step(goal, _State(position, counts))

    def _counts(self, part: Contains, state: _State, index: int) -> bool:
        is_done = part.high is None and state.counts[index] == part.low
        return state.position >= part.start and not is_done

    def _accepts(self, state: _State) -> bool:
        enough = all(count >= part.low for count, part in zip(state.counts, self._facet.contains, strict=True))
        return enough and state.position >= self._facet.low

    def can_be_filled(self, has_instance: HasInstance) -> bool:
        good: set[_State] = set()
        for state, steps in self._steps.items():
            if self._accepts(state) or any(step.then in good and has_instance(step.goal) for step in steps):
                good.add(state)
        return _State(0, (0,) * len(self._caps)) in good

    def build(self, compiled: Compiled) -> int:
        e, comma = self._brackets.expressions, self._brackets.comma
        found: dict[_State, int] = {}  # what follows an item, with its comma
        for state, steps in self._steps.items():
            separator = comma if state.position else EPSILON
            onward = [EPSILON] if self._accepts(state) and state.position else []
            loops = []
            for step in steps:
                item = e.concat(separator, compiled(step.goal))
                if step.then == state:
                    loops.append(item)
                else:
                    onward.append(e.concat(item, found[step.then]))
            found[state] = e.concat(e.repeat(e.alternate(loops), 0, self._most_loops), e.alternate(onward))
        start = _State(0, (0,) * len(self._caps))
        return self._brackets.enclosed(found[start], self._accepts(start))


def _told_apart(goals: dict[tuple[int, ...], Goal], index: int, part: Contains) -> dict[tuple[int, ...], Goal]:
    """Split items into those that a `contains` counts and those that it does not."""
    split: dict[tuple[int, ...], Goal] = {}
    for counts, goal in goals.items():
        split[counts] = goal if part.high is None else both(goal, opposite(part.goal))
        if part.high is None or counts[index] < part.high:
            counted = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
            split[counted] = both(goal, part.goal)
    return split


class DistinctPlan:
    """Items out of a finite set that must all differ (or, negated, of which two must be equal).

    Whether a value came already is one automaton per value, intersected: no set of values is ever written out.
    """

    def __init__(self, base: Plan, values: list[Goal], is_unique: bool, brackets: Brackets) -> None:
        self._base = base
        self._values = values
        self._is_unique = is_unique
        self._brackets = brackets
        self.goals: Iterable[Goal] = (*base.goals, *values)

    def can_be_filled(self, has_instance: HasInstance) -> bool:
        return self._base.can_be_filled(has_instance)

    def build(self, compiled: Compiled) -> int:
        e = self._brackets.expressions
        base = self._base.build(compiled)
        items = [item for item in map(compiled, self._values) if item != EMPTY]
        ways = [self._with_repeats(items, item) for item in items]
        found = e.intersect(base, *ways) if self._is_unique else e.intersect(base, e.alternate(ways))
        return EMPTY if e.is_empty(found) else found

    def _with_repeats(self, items: list[int], item: int) -> int:
        """Arrays in which the item comes at most once, or at least twice."""
        e, comma = self._brackets.expressions, self._brackets.comma
        others = e.alternate(items if not self._is_unique else [other for other in items if other != item])
        before = e.repeat(e.concat(others, comma), 0)
        after = e.repeat(e.concat(comma, others), 0)
        if not self._is_unique:
            between = e.concat(comma, e.repeat(e.concat(others, comma), 0))
            return self._brackets.enclosed(e.concat(before, item, between, item, after), False)
        return self._brackets.enclosed(e.alternate((e.concat(before, item, after), e.concat(others, after))), True)


class Arrays:
    """Plans of array facets. `listed(goal)` gives the values of a goal when they are finite and few, as goals."""

    def __init__(
        self,
        brackets: Brackets,
        most_states: int,
        listed: Callable[[Goal], list[Goal] | None],
        max_items: int | None = None,
    ) -> None:
        """max_items: see `SchemaOptions`."""
        self._brackets = brackets
        self._most_states = most_states
        self._listed = listed
        self._max_items = max_items

    def plan(self, facet: ArrayFacet) -> Plan:
        """Raises ConstraintUnsupported where items must differ and there is no end of them."""
        has_pairs = facet.high is None or facet.high > 1
        if facet.repeating and not has_pairs:
            facet = facet._replace(prefix=(), rest=NEVER, low=1)
        base = self._base(facet)
        if not has_pairs:
            return base
        for where in facet.unique:
            base = self._distinct(base, facet, where, is_unique=True)
        for where in facet.repeating:
            base = self._distinct(base, facet, where, is_unique=False)
        return base

    def _base(self, facet: ArrayFacet) -> Plan:
        if facet.contains:
            return CountedPlan(facet, self._brackets, self._most_states, self._cap(facet))
        if facet.high is None:
            facet = facet._replace(high=self._cap(facet))
        return SequencePlan(facet, self._brackets)

    def _cap(self, facet: ArrayFacet) -> int | None:
        """Of the items; no less than the schema demands, where two of them must be equal too."""
        if self._max_items is None:
            return None
        return max(self._max_items, facet.low, len(facet.prefix) + (2 if facet.repeating else 0))

    def _distinct(self, base: Plan, facet: ArrayFacet, where: str, is_unique: bool) -> Plan:
        values: dict[Goal, None] = {}
        for goal in _possible_items(facet):
            found = self._listed(goal)
            if found is None:
                raise ConstraintUnsupported(
                    f"uniqueItems at {where} is enforced only where items come out of at most {MOST_VALUES} constants "
                    "(enum, const, boolean, small integer ranges), or where there is at most one; list the constants."
                )
            values.update(dict.fromkeys(found))
        return DistinctPlan(base, list(values), is_unique, self._brackets)


def _possible_items(facet: ArrayFacet) -> list[Goal]:
    goals = [*facet.prefix, facet.rest]
    return list(dict.fromkeys(goals[: facet.high]))
