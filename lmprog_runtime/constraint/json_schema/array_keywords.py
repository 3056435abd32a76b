"""Keywords on arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmprog_runtime.constraint.json_schema.context import Context, Handler, opposite
from lmprog_runtime.constraint.json_schema.facets import ALL_CASES, NO_CASES, ArrayFacet, Cases, Contains, cases_of
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, Goal
from lmprog_runtime.constraint.json_schema.scalar_keywords import at_least, at_most
from lmprog_runtime.constraint.json_schema.values import ARRAY


def _array_cases(facets: Iterable[ArrayFacet], holds: bool) -> Cases:
    return cases_of(ARRAY, facets, ALL_CASES if holds else NO_CASES)


def _items(context: Context, holds: bool) -> Cases:
    value = context.schema["items"]
    if isinstance(value, list):
        return _prefix(context, value, holds)
    return _rest(context, value, len(context.schema.get("prefixItems", ())), holds)


def _prefix_items(context: Context, holds: bool) -> Cases:
    return _prefix(context, context.schema["prefixItems"], holds)


def _additional_items(context: Context, holds: bool) -> Cases:
    items = context.schema.get("items")
    if not isinstance(items, list):  # without a list next to it the keyword is without effect, by the standard
        return ALL_CASES if holds else NO_CASES
    return _rest(context, context.schema["additionalItems"], len(items), holds)


def _prefix(context: Context, schemas: list[Any], holds: bool) -> Cases:
    goals = [context.goal(schema) for schema in schemas]
    if not holds:
        return _array_cases((_violated(index, goal) for index, goal in enumerate(goals)), False)
    evaluated = len(goals) if context.is_annotated else 0
    return _array_cases([ArrayFacet(tuple(goals), evaluated=evaluated)], True)


def _violated(index: int, goal: Goal) -> ArrayFacet:
    return ArrayFacet((ANYTHING,) * index + (opposite(goal),), low=index + 1)


def _rest(context: Context, schema: Any, start: int, holds: bool) -> Cases:
    goal = context.goal(schema)
    if not holds:
        return _contains_cases([Contains(opposite(goal), start, 1, None)], False)
    evaluated = None if context.is_annotated else 0
    return _array_cases([ArrayFacet((ANYTHING,) * start, goal, evaluated=evaluated)], True)


def _contains_cases(parts: Iterable[Contains], holds: bool) -> Cases:
    return _array_cases((ArrayFacet(contains=(part,)) for part in parts), holds)


def _contains(context: Context, holds: bool) -> Cases:
    goal = context.goal(context.schema["contains"])
    low, high = (context.schema.get(keyword) for keyword in ("minContains", "maxContains"))
    low = 1 if low is None else int(low)
    high = None if high is None else int(high)
    if not holds:
        return _contains_cases(_outside(goal, low, high), False)
    evaluated = (goal,) if context.is_annotated and context.draft >= 2020 else ()
    parts = (Contains(goal, 0, low, high),) if low or high is not None else ()
    return _array_cases([ArrayFacet(contains=parts, evaluated_goals=evaluated)], True)


def _outside(goal: Goal, low: int, high: int | None) -> Iterable[Contains]:
    if low:
        yield Contains(goal, 0, 0, low - 1)
    if high is not None:
        yield Contains(goal, 0, high + 1, None)


def _min_items(context: Context, holds: bool) -> Cases:
    return _array_cases(at_least(ArrayFacet, int(context.schema["minItems"]), holds), holds)


def _max_items(context: Context, holds: bool) -> Cases:
    return _array_cases(at_most(ArrayFacet, int(context.schema["maxItems"]), holds), holds)


def _unique_items(context: Context, holds: bool) -> Cases:
    if not context.schema["uniqueItems"]:
        return ALL_CASES if holds else NO_CASES
    where = (context.at("uniqueItems"),)
    return _array_cases([ArrayFacet(unique=where) if holds else ArrayFacet(repeating=where)], holds)


HANDLERS: dict[str, Handler] = {
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
}
