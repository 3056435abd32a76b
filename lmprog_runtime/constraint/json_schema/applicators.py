"""Keywords that apply schemas to the same value: references, allOf, anyOf, oneOf, not, if/then/else, dependencies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmprog_runtime.constraint.json_schema.context import Context, Handler, opposite
from lmprog_runtime.constraint.json_schema.document import Resource
from lmprog_runtime.constraint.json_schema.facets import ALL_CASES, NO_CASES, Cases, ObjectFacet, cases_of
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER, Goal, both
from lmprog_runtime.constraint.json_schema.values import OBJECT

# -- references -----------------------------------------------------------------------------------------------------


def _reference(context: Context, holds: bool) -> Cases:
    return _referred(context, context.expander.document.resolve(context.node.place, "$ref"), holds)


def _referred(context: Context, schema: Any, holds: bool) -> Cases:
    return _signed(context, context.goal(schema), holds)


def _signed(context: Context, goal: Goal, holds: bool) -> Cases:
    return context.cases(goal) if holds else context.plain_cases(opposite(goal))


def _dynamic_reference(context: Context, holds: bool) -> Cases:
    """$dynamicRef (2020-12 core section 8.2.3.2): like $ref, unless it lands on a $dynamicAnchor that is also in an
    outer resource of the dynamic scope; then the outermost one counts."""
    schema = context.expander.document.resolve(context.node.place, "$dynamicRef")
    name = context.schema["$dynamicRef"].partition("#")[2]
    return _referred(context, _outermost(context, schema, name), holds)


def _recursive_reference(context: Context, holds: bool) -> Cases:
    """$recursiveRef (2019-09 core section 8.2.4.2.2): the same with the nameless $recursiveAnchor."""
    schema = context.expander.document.resolve(context.node.place, "$recursiveRef")
    return _referred(context, _outermost(context, schema, ""), holds)


def _outermost(context: Context, schema: Any, name: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    target: Resource = context.expander.document.place(schema).resource
    anchor = target.dynamic_anchors.get(name)
    if anchor is None or anchor.schema is not schema:
        return schema
    for resource in context.node.scope:
        if name in resource.dynamic_anchors:
            return resource.dynamic_anchors[name].schema
    return schema


# -- logic ----------------------------------------------------------------------------------------------------------


def _all_of(context: Context, holds: bool) -> Cases:
    goals = [context.goal(schema) for schema in context.schema["allOf"]]
    if holds:
        return _conjunction(context, (context.cases(goal) for goal in goals))
    return context.either(context.plain_cases(opposite(goal)) for goal in goals)


def _conjunction(context: Context, parts: Iterable[Cases]) -> Cases:
    cases = ALL_CASES
    for part in parts:
        cases = context.both(cases, part)
    return cases


def _none_of(context: Context, goals: Iterable[Goal]) -> Cases:
    return _conjunction(context, sorted((context.plain_cases(opposite(goal)) for goal in goals), key=_width))


def _any_of(context: Context, holds: bool) -> Cases:
    goals = [context.goal(schema) for schema in context.schema["anyOf"]]
    if not holds:
        return _none_of(context, goals)
    if not context.is_annotated:
        return context.either(context.cases(goal) for goal in goals)
    return _any_of_with_annotations(context, goals)


def _any_of_with_annotations(context: Context, goals: list[Goal]) -> Cases:
    """Every branch that holds evaluates something: for each branch, the cases where it holds and where it does not."""
    some, none = NO_CASES, ALL_CASES
    for goal in goals:
        held, failed = context.cases(goal), context.plain_cases(opposite(goal))
        some = context.either((context.both(some, held), context.both(some, failed), context.both(none, held)))
        none = context.both(none, failed)
    return some


def _one_of(context: Context, holds: bool) -> Cases:
    goals = [context.goal(schema) for schema in context.schema["oneOf"]]
    for goal in goals:  # first, so that asking whether they are disjoint does not lead into them
        context.plain_cases(goal)
    if holds:
        return context.either(_only(context, goals, index) for index in range(len(goals)))
    pairs = (_both_hold(context, one, other) for i, one in enumerate(goals) for other in goals[:i])
    return context.either((_none_of(context, goals), *pairs))


def _both_hold(context: Context, one: Goal, other: Goal) -> Cases:
    return context.both(context.plain_cases(one), context.plain_cases(other))


def _only(context: Context, goals: list[Goal], index: int) -> Cases:
    """One branch holds and the others fail; those proven disjoint from it fail anyway, so they add nothing."""
    base = both(_siblings(context), goals[index])
    others = goals[:index] + goals[index + 1 :]
    rivals = [other for other in others if not context.expander.is_disjoint(both(base, other))]
    failing = [context.plain_cases(opposite(rival)) for rival in rivals]
    failing.sort(key=_width)  # those with few facets leave little to be multiplied by the others
    return _conjunction(context, (context.cases(goals[index]), *failing))


def _width(cases: Cases) -> int:
    return sum(map(len, cases))


def _siblings(context: Context) -> Goal:
    """The goal of the keywords next to oneOf, which help to tell its branches apart."""
    rest = {keyword: value for keyword, value in context.schema.items() if keyword in _HELPFUL_SIBLINGS}
    return context.expander.made_up(rest, context) if rest else ()


_HELPFUL_SIBLINGS = frozenset(("type", "properties", "required", "enum", "const", "pattern", "minimum", "maximum"))


def _not(context: Context, holds: bool) -> Cases:
    goal = context.goal(context.schema["not"])
    return context.plain_cases(opposite(goal) if holds else goal)


def _if(context: Context, holds: bool) -> Cases:
    schema = context.schema
    if "then" not in schema and "else" not in schema and not context.is_annotated:
        return ALL_CASES if holds else NO_CASES
    condition, then, otherwise = (context.goal(schema.get(keyword, True)) for keyword in ("if", "then", "else"))
    return context.either(
        (
            context.both(_signed(context, condition, True), _signed(context, then, holds)),
            context.both(_signed(context, condition, False), _signed(context, otherwise, holds)),
        )
    )


# -- dependencies ---------------------------------------------------------------------------------------------------


def _dependencies(context: Context, keyword: str, holds: bool) -> Cases:
    parts = (_dependency(context, name, needed, holds) for name, needed in context.schema[keyword].items())
    return _conjunction(context, parts) if holds else context.either(parts)


def _dependency(context: Context, name: str, needed: Any, holds: bool) -> Cases:
    """The member is absent, or what it needs is the case."""
    present = ObjectFacet(((name, ANYTHING),), required=(name,))  # named, to come before what it needs
    if isinstance(needed, list):
        names = tuple(dict.fromkeys(needed))
        facets = [present._replace(required=(name, *names))] if holds else [_without(other, present) for other in names]
        kept = cases_of(OBJECT, facets, NO_CASES)
    else:
        goal = context.goal(needed)
        kept = context.both(cases_of(OBJECT, (present,), NO_CASES), _signed(context, goal, holds))
    if not holds:
        return kept
    absent = cases_of(OBJECT, (ObjectFacet(named=((name, NEVER),)),), ALL_CASES)
    return context.either((absent, kept))


def _without(name: str, facet: ObjectFacet) -> ObjectFacet:
    return facet._replace(named=((name, NEVER),))


def _of_keyword(keyword: str) -> Handler:
    return lambda context, holds: _dependencies(context, keyword, holds)


HANDLERS: dict[str, Handler] = {
    "$ref": _reference,
    "$dynamicRef": _dynamic_reference,
    "$recursiveRef": _recursive_reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
    "dependencies": _of_keyword("dependencies"),
    "dependentRequired": _of_keyword("dependentRequired"),
    "dependentSchemas": _of_keyword("dependentSchemas"),
}
