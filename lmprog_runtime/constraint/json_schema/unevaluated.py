"""unevaluatedItems and unevaluatedProperties (core section 11), on facets that know what was evaluated.

The branches of an annotated expansion are told apart by which of them hold, so each facet has one set of evaluated
items and members, and the keyword is a rule on the rest.
"""

from __future__ import annotations

from typing import Any

from lmprog_runtime.constraint.json_schema.context import Context, opposite
from lmprog_runtime.constraint.json_schema.facets import (
    NO_CASES,
    UNEVALUATED,
    ArrayFacet,
    Cases,
    Contains,
    Evaluated,
    Facet,
    ObjectFacet,
    Rule,
    Scope,
    cases_of,
    meet,
)
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, Goal
from lmprog_runtime.constraint.json_schema.values import ARRAY, OBJECT

_KINDS = {"unevaluatedItems": ARRAY, "unevaluatedProperties": OBJECT}


def keywords_of(schema: dict[str, Any]) -> list[str]:
    return [keyword for keyword in _KINDS if keyword in schema]


def holding(context: Context, keyword: str, cases: Cases) -> Cases:
    """The cases in which the keyword holds too. `cases` are those of the rest of the schema, annotated."""
    kind, goal = _KINDS[keyword], context.goal(context.schema[keyword])
    restrict = _restrict_items if kind == ARRAY else _restrict_members
    facets = (restrict(context, facet, goal) for facet in cases[kind])
    return cases_of(kind, (facet for facet in facets if facet is not None), cases)


def failing(context: Context, keyword: str, cases: Cases) -> Cases:
    """The cases in which the rest of the schema holds and the keyword fails, without annotations."""
    kind, goal = _KINDS[keyword], context.goal(context.schema[keyword])
    violate = _violate_items if kind == ARRAY else _violate_members
    facets = (violate(context, facet, goal) for facet in cases[kind])
    return forgotten(cases_of(kind, (facet for facet in facets if facet is not None), NO_CASES))


def forgotten(cases: Cases) -> Cases:
    """The cases without their record of what was evaluated."""
    arrays: tuple[Any, ...] = cases[ARRAY]
    objects: tuple[Any, ...] = cases[OBJECT]
    cases = cases_of(ARRAY, dict.fromkeys(facet._replace(evaluated=0, evaluated_goals=()) for facet in arrays), cases)
    return cases_of(OBJECT, dict.fromkeys(facet._replace(evaluated=UNEVALUATED) for facet in objects), cases)


def _rest(context: Context, facet: ArrayFacet, goal: Goal) -> Goal:
    """What an unevaluated item must satisfy; one that `contains` has matched counts as evaluated."""
    return context.expander.either_goal((goal, *facet.evaluated_goals))


def _restrict_items(context: Context, facet: Any, goal: Goal) -> Facet | None:
    if facet.evaluated is None:
        return facet  # type: ignore[no-any-return]
    rest = ArrayFacet((ANYTHING,) * facet.evaluated, _rest(context, facet, goal), evaluated=None)
    return meet(ARRAY, facet, rest)


def _violate_items(context: Context, facet: Any, goal: Goal) -> Facet | None:
    rest = _rest(context, facet, goal)
    if facet.evaluated is None or rest == ANYTHING:
        return None
    return meet(ARRAY, facet, ArrayFacet(contains=(Contains(opposite(rest), facet.evaluated, 1, None),)))


def _restrict_members(_: Context, facet: Any, goal: Goal) -> Facet | None:
    if facet.evaluated.everything:
        return facet  # type: ignore[no-any-return]
    rules = () if goal == ANYTHING else (Rule(_unevaluated_names(facet), goal),)
    return meet(OBJECT, facet, ObjectFacet(rules=rules, evaluated=Evaluated(everything=True)))


def _violate_members(_: Context, facet: Any, goal: Goal) -> Facet | None:
    if facet.evaluated.everything or goal == ANYTHING:
        return None
    return meet(OBJECT, facet, ObjectFacet(some=(Rule(_unevaluated_names(facet), opposite(goal)),)))


def _unevaluated_names(facet: ObjectFacet) -> Scope:
    return Scope(facet.evaluated.names, facet.evaluated.languages)
