"""Which goals have an instance at all: the least fixpoint over the plans, so that recursion without a base is seen.

Used where the compiler meets a goal that is still being built, and to prove branches of oneOf disjoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER, Goal
from lmprog_runtime.constraint.json_schema.plans import Plan


class Shape(NamedTuple):
    """A goal ready to be built."""

    scalars: tuple[int, ...]  # expressions that have texts
    plans: tuple[Plan, ...]

    def goals(self) -> list[Goal]:
        return [goal for plan in self.plans for goal in plan.goals]


class Inhabitance:
    """`shape_of(goal)` returns None for a goal of which nothing can be said: it is then taken to have an instance."""

    def __init__(self, shape_of: Callable[[Goal, bool], Shape | None]) -> None:
        self._shape_of = shape_of
        self._known: dict[Goal, bool] = {ANYTHING: True, NEVER: False}

    def has_instance(self, goal: Goal) -> bool:
        """False only when it is proven that no finite value satisfies the goal."""
        if goal in self._known:
            return self._known[goal]
        search = _Search(self._known, self._shape_of, goal)
        search.run()
        if not search.has_assumed:
            self._known.update(dict.fromkeys(search.agenda, False))
            self._known.update(dict.fromkeys(search.inhabited, True))
        return goal in search.inhabited


class _Search:
    """One fixpoint. Goals are looked at newest first, as those they need are found after them."""

    def __init__(self, known: dict[Goal, bool], shape_of: Callable[[Goal, bool], Shape | None], goal: Goal) -> None:
        self._known = known
        self._shape_of = shape_of
        self._root = goal
        self.agenda: dict[Goal, None] = {goal: None}
        self.inhabited: set[Goal] = set()
        self.has_assumed = False

    def run(self) -> None:
        progress = -1
        while progress != len(self.agenda) + len(self.inhabited) and self._root not in self.inhabited:
            progress = len(self.agenda) + len(self.inhabited)
            for goal in reversed(list(self.agenda)):
                if goal not in self.inhabited and self._can_be_filled(goal):
                    self.inhabited.add(goal)

    def _can_be_filled(self, goal: Goal) -> bool:
        shape = self._shape_of(goal, goal != self._root)
        if shape is None:
            self.has_assumed = True
            return True
        return bool(shape.scalars) or any(plan.can_be_filled(self._has_instance) for plan in shape.plans)

    def _has_instance(self, goal: Goal) -> bool:
        if goal in self._known:
            return self._known[goal]
        self.agenda.setdefault(goal)
        return goal in self.inhabited
