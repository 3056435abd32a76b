"""Keywords on types, constants, numbers and strings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from lmprog_runtime.constraint.json_schema.context import Context, Handler, opposite
from lmprog_runtime.constraint.json_schema.facets import (
    ALL_CASES,
    ANY_FORM,
    FREE,
    INTEGRAL,
    NO_CASES,
    PLAIN,
    ArrayFacet,
    Bound,
    Cases,
    ConstantFacet,
    Facet,
    Facets,
    NumberFacet,
    ObjectFacet,
    Rule,
    Scope,
    StringFacet,
    cases_of,
)
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER
from lmprog_runtime.constraint.json_schema.values import (
    ARRAY,
    BOOLEAN,
    KINDS,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    identity,
    kind_of,
)

_KIND_NAMES = {"null": NULL, "boolean": BOOLEAN, "number": NUMBER, "string": STRING, "array": ARRAY, "object": OBJECT}


def _type(context: Context, holds: bool) -> Cases:
    value = context.schema["type"]
    names = value if isinstance(value, list) else [value]
    kinds = {_KIND_NAMES[name] for name in names if name != "integer"}
    cases = tuple((FREE[kind],) if (kind in kinds) == holds else () for kind in KINDS)
    if "integer" not in names or NUMBER in kinds:
        return cases
    # Up to draft 4, 1.0 is not an integer; since draft 6 it is the same number as 1.
    forms = frozenset((PLAIN,)) if context.draft == 4 else frozenset((PLAIN, INTEGRAL))
    return cases_of(NUMBER, (NumberFacet(forms if holds else ANY_FORM - forms),), cases)


# -- constants ------------------------------------------------------------------------------------------------------


def _enum(context: Context, holds: bool) -> Cases:
    return _constants(context, context.schema["enum"], holds)


def _const(context: Context, holds: bool) -> Cases:
    return _constants(context, [context.schema["const"]], holds)


def _constants(context: Context, values: list[Any], holds: bool) -> Cases:
    by_kind: dict[int, list[Any]] = {kind: [] for kind in KINDS}
    for value in values:
        by_kind[kind_of(value)].append(value)
    if holds:
        return tuple(tuple(_equal(context, kind, found)) if found else () for kind, found in by_kind.items())
    return tuple(_different(context, kind, found) if found else (FREE[kind],) for kind, found in by_kind.items())


def _equal(context: Context, kind: int, values: list[Any]) -> Iterable[Facet]:
    if kind in (NULL, BOOLEAN):
        return (ConstantFacet(frozenset(values)),)
    if kind == NUMBER:
        return (NumberFacet(values=frozenset(map(Decimal, values))),)
    if kind == STRING:
        return (StringFacet(values=tuple(dict.fromkeys(values))),)
    equal = _equal_array if kind == ARRAY else _equal_object
    return dict.fromkeys(equal(context, value) for value in values)


def _equal_array(context: Context, value: list[Any]) -> Facet:
    goals = tuple(context.expander.constant(item) for item in value)
    return ArrayFacet(goals, NEVER, len(goals), len(goals))


def _equal_object(context: Context, value: dict[str, Any]) -> Facet:
    named = tuple((name, context.expander.constant(item)) for name, item in value.items())
    names = tuple(value)
    return ObjectFacet(named, (Rule(Scope(names), NEVER),), names)


def _different(context: Context, kind: int, values: list[Any]) -> Facets:
    if kind in (NULL, BOOLEAN):
        left = frozenset((None,) if kind == NULL else (True, False)).difference(values)
        return (ConstantFacet(left),) if left else ()
    if kind == NUMBER:
        return (NumberFacet(excluded=frozenset(map(Decimal, values))),)
    if kind == STRING:
        return (StringFacet(excluded=frozenset(values)),)
    differing = _differing_arrays if kind == ARRAY else _differing_objects
    cases = ALL_CASES
    for value in {identity(value): value for value in values}.values():
        cases = context.both(cases, cases_of(kind, differing(context, value), NO_CASES))
    return cases[kind]


def _differing_arrays(context: Context, value: list[Any]) -> Iterable[Facet]:
    if value:
        yield ArrayFacet(high=len(value) - 1)
    yield ArrayFacet(low=len(value) + 1)
    for index, item in enumerate(value):
        differs = opposite(context.expander.constant(item))
        yield ArrayFacet((ANYTHING,) * index + (differs,), low=len(value), high=len(value))


def _differing_objects(context: Context, value: dict[str, Any]) -> Iterable[Facet]:
    for name, item in value.items():
        yield ObjectFacet(named=((name, NEVER),))
        yield ObjectFacet(named=((name, opposite(context.expander.constant(item))),), required=(name,))
    yield ObjectFacet(some=(Rule(Scope(tuple(value)), ANYTHING),))


# -- numbers --------------------------------------------------------------------------------------------------------


def _number_cases(facets: Iterable[NumberFacet], holds: bool) -> Cases:
    return cases_of(NUMBER, facets, ALL_CASES if holds else NO_CASES)


def _bound(keyword: str, is_low: bool, is_strict: bool) -> Handler:
    def handler(context: Context, holds: bool) -> Cases:
        value = context.schema[keyword]
        if isinstance(value, bool):  # draft 4: it makes the bound next to it strict, which reads it
            return ALL_CASES if holds else NO_CASES
        strict = is_strict or context.schema.get("exclusive" + keyword.capitalize()) is True
        bound = Bound(Decimal(value), strict if holds else not strict)
        return _number_cases([NumberFacet(low=bound) if is_low == holds else NumberFacet(high=bound)], holds)

    return handler


def _multiple_of(context: Context, holds: bool) -> Cases:
    step = (Decimal(context.schema["multipleOf"]),)
    return _number_cases([NumberFacet(multiples=step) if holds else NumberFacet(non_multiples=step)], holds)


# -- strings --------------------------------------------------------------------------------------------------------


def _string_cases(facets: Iterable[StringFacet], holds: bool) -> Cases:
    return cases_of(STRING, facets, ALL_CASES if holds else NO_CASES)


def _min_length(context: Context, holds: bool) -> Cases:
    return _string_cases(at_least(StringFacet, int(context.schema["minLength"]), holds), holds)


def _max_length(context: Context, holds: bool) -> Cases:
    return _string_cases(at_most(StringFacet, int(context.schema["maxLength"]), holds), holds)


def at_least(facet: Callable[..., Any], count: int, holds: bool) -> list[Any]:
    """Facets with `count` or more of what their `low` and `high` count; or with fewer."""
    if holds:
        return [facet(low=count)]
    return [facet(high=count - 1)] if count else []


def at_most(facet: Callable[..., Any], count: int, holds: bool) -> list[Any]:
    """Facets with `count` or fewer of what their `low` and `high` count; or with more."""
    return [facet(high=count) if holds else facet(low=count + 1)]


def _pattern(context: Context, holds: bool) -> Cases:
    language = context.expander.strings.pattern(context.schema["pattern"], context.at("pattern"))
    return _language_cases(language, holds)


def _language_cases(language: int, holds: bool) -> Cases:
    languages = frozenset((language,))
    return _string_cases([StringFacet(languages=languages) if holds else StringFacet(refused=languages)], holds)


def _format(context: Context, holds: bool) -> Cases:
    language = None
    if context.expander.options.formats == "assert":
        language = context.expander.strings.format(context.schema["format"], context.at("format"))
    if language is None:
        return ALL_CASES if holds else NO_CASES
    return _language_cases(language, holds)


HANDLERS: dict[str, Handler] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _bound("minimum", is_low=True, is_strict=False),
    "maximum": _bound("maximum", is_low=False, is_strict=False),
    "exclusiveMinimum": _bound("exclusiveMinimum", is_low=True, is_strict=True),
    "exclusiveMaximum": _bound("exclusiveMaximum", is_low=False, is_strict=True),
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
}
