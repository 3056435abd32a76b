"""Keywords on objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmprog_runtime.constraint.json_schema.context import Context, Handler, opposite
from lmprog_runtime.constraint.json_schema.facets import (
    ALL_CASES,
    NO_CASES,
    UNEVALUATED,
    Cases,
    Evaluated,
    ObjectFacet,
    Rule,
    Scope,
    StringFacet,
    cases_of,
)
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER
from lmprog_runtime.constraint.json_schema.scalar_keywords import at_least, at_most
from lmprog_runtime.constraint.json_schema.values import OBJECT, STRING


def _object_cases(facets: Iterable[ObjectFacet], holds: bool) -> Cases:
    return cases_of(OBJECT, facets, ALL_CASES if holds else NO_CASES)


def _properties(context: Context, holds: bool) -> Cases:
    named = tuple((name, context.goal(schema)) for name, schema in context.schema["properties"].items())
    if not holds:
        return _object_cases((ObjectFacet(((name, opposite(goal)),), required=(name,)) for name, goal in named), False)
    evaluated = Evaluated(names=tuple(name for name, _ in named)) if context.is_annotated else UNEVALUATED
    return _object_cases([ObjectFacet(named, evaluated=evaluated)], True)


def _pattern_properties(context: Context, holds: bool) -> Cases:
    patterns = context.schema["patternProperties"]
    rules = [
        Rule(Scope(inside=_language(context, pattern)), context.goal(schema)) for pattern, schema in patterns.items()
    ]
    if not holds:
        return _object_cases((_violating(rule) for rule in rules), False)
    evaluated = Evaluated(languages=_languages(context)) if context.is_annotated else UNEVALUATED
    return _object_cases([ObjectFacet(rules=tuple(rules), evaluated=evaluated)], True)


def _violating(rule: Rule) -> ObjectFacet:
    return ObjectFacet(some=(Rule(rule.scope, opposite(rule.goal)),))


def _language(context: Context, pattern: str) -> int:
    return context.expander.strings.pattern(pattern, context.at("patternProperties", pattern))


def _languages(context: Context) -> frozenset[int]:
    return frozenset(_language(context, pattern) for pattern in context.schema.get("patternProperties", ()))


def _additional_properties(context: Context, holds: bool) -> Cases:
    goal = context.goal(context.schema["additionalProperties"])
    rule = Rule(Scope(tuple(context.schema.get("properties", ())), _languages(context)), goal)
    if not holds:
        return _object_cases([] if goal == ANYTHING else [_violating(rule)], False)
    evaluated = Evaluated(everything=True) if context.is_annotated else UNEVALUATED
    rules = () if goal == ANYTHING else (rule,)
    return _object_cases([ObjectFacet(rules=rules, evaluated=evaluated)], True)


def _property_names(context: Context, holds: bool) -> Cases:
    facets = context.plain_cases(context.goal(context.schema["propertyNames"]))[STRING]
    refused = _refused_names(context, facets)
    if refused is None:
        return ALL_CASES if holds else NO_CASES
    if holds:
        return _object_cases([ObjectFacet(rules=(Rule(refused, NEVER),))], True)
    return _object_cases([ObjectFacet(some=(Rule(refused, ANYTHING),))], False)


def _refused_names(context: Context, facets: tuple[Any, ...]) -> Scope | None:
    """The names that are not among the strings of the facets; None when all are."""
    if StringFacet() in facets:
        return None
    strings = context.expander.strings
    values = strings.values(facets)
    if values is not None and len(values) <= _LISTED_NAMES:
        return Scope(names=values)
    return Scope(outside=frozenset((strings.language(facets),)))


_LISTED_NAMES = 256
"""So many allowed names are members that may come once each, in their order; more than these are a language."""


def _required(context: Context, holds: bool) -> Cases:
    names = tuple(dict.fromkeys(context.schema["required"]))
    if holds:
        return _object_cases([ObjectFacet(required=names)], True)
    return _object_cases((ObjectFacet(named=((name, NEVER),)) for name in names), False)


def _min_properties(context: Context, holds: bool) -> Cases:
    return _object_cases(at_least(ObjectFacet, int(context.schema["minProperties"]), holds), holds)


def _max_properties(context: Context, holds: bool) -> Cases:
    return _object_cases(at_most(ObjectFacet, int(context.schema["maxProperties"]), holds), holds)


HANDLERS: dict[str, Handler] = {
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "required": _required,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
}
