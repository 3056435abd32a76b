"""Facets: what a schema demands of the values of one type, with all its keywords put together.

A schema is, for each of the six types, a union of facets (`Cases`). The conjunction of two facets is one facet, exactly
(`meet`; None when it is seen at once that nothing satisfies both). The schemas of items and members stay goals.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER, Goal, both
from lmprog_runtime.constraint.json_schema.values import ARRAY, BOOLEAN, KINDS, NULL, NUMBER, OBJECT, STRING


class ConstantFacet(NamedTuple):
    """null, true and false."""

    allowed: frozenset[Any]


PLAIN, INTEGRAL, FRACTIONAL = "plain", "integral", "fractional"
"""Forms of a number: an integer without a fraction, one with (1.0, 1e20), anything else."""

ANY_FORM = frozenset((PLAIN, INTEGRAL, FRACTIONAL))


class Bound(NamedTuple):
    value: Decimal
    is_strict: bool


class NumberFacet(NamedTuple):
    forms: frozenset[str] = ANY_FORM
    low: Bound | None = None
    high: Bound | None = None
    multiples: tuple[Decimal, ...] = ()  # of all of these
    non_multiples: tuple[Decimal, ...] = ()  # of none of these
    values: frozenset[Decimal] | None = None
    excluded: frozenset[Decimal] = frozenset()


class StringFacet(NamedTuple):
    low: int = 0  # code points
    high: int | None = None
    languages: frozenset[int] = frozenset()  # expressions of the text between the quotes; it is in all of these
    refused: frozenset[int] = frozenset()  # and in none of these
    values: tuple[str, ...] | None = None
    excluded: frozenset[str] = frozenset()


class Contains(NamedTuple):
    """Between `low` and `high` of the items from index `start` on satisfy the goal."""

    goal: Goal
    start: int
    low: int
    high: int | None


class ArrayFacet(NamedTuple):
    prefix: tuple[Goal, ...] = ()
    rest: Goal = ANYTHING
    low: int = 0
    high: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: tuple[str, ...] = ()  # where uniqueItems stands, for messages
    repeating: tuple[str, ...] = ()  # where a negated uniqueItems stands
    evaluated: int | None = 0  # items that unevaluatedItems skips; None: all
    evaluated_goals: tuple[Goal, ...] = ()  # and those that satisfy one of these


class Scope(NamedTuple):
    """A set of member names: those in `inside` (None: all), but none of `names`, nor any in a language of `outside`."""

    names: tuple[str, ...] = ()
    outside: frozenset[int] = frozenset()
    inside: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it leaves out names only, and no languages."""
        return self.inside is None and not self.outside


class Rule(NamedTuple):
    """Members with a name in the scope satisfy the goal."""

    scope: Scope
    goal: Goal


class Evaluated(NamedTuple):
    """The members that unevaluatedProperties skips."""

    everything: bool = False
    names: tuple[str, ...] = ()
    languages: frozenset[int] = frozenset()


UNEVALUATED = Evaluated()


class ObjectFacet(NamedTuple):
    named: tuple[tuple[str, Goal], ...] = ()  # in the order of their first mention
    rules: tuple[Rule, ...] = ()
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    some: tuple[Rule, ...] = ()  # for each, some member with a name in the scope satisfies the goal
    evaluated: Evaluated = UNEVALUATED


Facet: TypeAlias = ConstantFacet | NumberFacet | StringFacet | ArrayFacet | ObjectFacet
Facets = tuple[Facet, ...]
Cases = tuple[Facets, ...]
"""For each type in KINDS, the facets of which a value satisfies one."""

FREE: Facets = (
    ConstantFacet(frozenset((None,))),
    ConstantFacet(frozenset((True, False))),
    NumberFacet(),
    StringFacet(),
    ArrayFacet(),
    ObjectFacet(),
)
"""For each type, the facet that demands nothing."""

ALL_CASES: Cases = tuple((facet,) for facet in FREE)
NO_CASES: Cases = ((),) * len(KINDS)


def cases_of(kind: int, facets: Iterable[Facet], others: Cases) -> Cases:
    """Cases with the given facets for one type, and those of `others` for the rest."""
    return (*others[:kind], tuple(facets), *others[kind + 1 :])


def union(first: Cases, second: Cases, keeps_all: bool = False) -> Cases:
    """Values that satisfy either. `keeps_all`: also facets that another one covers, for what they have evaluated."""
    return tuple(_united(kind, first[kind], second[kind], keeps_all) for kind in KINDS)


def _united(kind: int, first: Facets, second: Facets, keeps_all: bool) -> Facets:
    if not second:
        return first
    if not first:
        return second
    if not keeps_all and (FREE[kind] in first or FREE[kind] in second):
        return (FREE[kind],)
    return tuple(dict.fromkeys(first + second))


def meet(kind: int, first: Facet, second: Facet) -> Facet | None:
    """Values of one type that satisfy both facets; None when it is plain that there are none."""
    if first == FREE[kind]:
        return second
    if second == FREE[kind] or first == second:
        return first
    met: Facet | None = _MEET[kind](first, second)
    return met


def _meet_constants(first: ConstantFacet, second: ConstantFacet) -> ConstantFacet | None:
    allowed = first.allowed & second.allowed
    return ConstantFacet(allowed) if allowed else None


def _meet_numbers(first: NumberFacet, second: NumberFacet) -> NumberFacet | None:
    forms = first.forms & second.forms
    values = _common(first.values, second.values)
    if not forms or values == frozenset():
        return None
    return NumberFacet(
        forms,
        _tighter(first.low, second.low, 1),
        _tighter(first.high, second.high, -1),
        _joined(first.multiples, second.multiples),
        _joined(first.non_multiples, second.non_multiples),
        values,
        first.excluded | second.excluded,
    )


def _tighter(first: Bound | None, second: Bound | None, sign: int) -> Bound | None:
    if first is None or second is None:
        return second if first is None else first
    return max(first, second, key=lambda bound: (bound.value * sign, bound.is_strict))


def _common(first: frozenset[Decimal] | None, second: frozenset[Decimal] | None) -> frozenset[Decimal] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _meet_strings(first: StringFacet, second: StringFacet) -> StringFacet | None:
    low, high = max(first.low, second.low), least(first.high, second.high)
    values = _common_texts(first.values, second.values)
    if values == () or (high is not None and low > high):
        return None
    return StringFacet(
        low,
        high,
        first.languages | second.languages,
        first.refused | second.refused,
        values,
        first.excluded | second.excluded,
    )


def _common_texts(first: tuple[str, ...] | None, second: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if first is None or second is None:
        return second if first is None else first
    kept = frozenset(second)
    return tuple(text for text in first if text in kept)


def _meet_arrays(first: ArrayFacet, second: ArrayFacet) -> ArrayFacet | None:
    length = max(len(first.prefix), len(second.prefix))
    prefix = tuple(both(item_goal(first, index), item_goal(second, index)) for index in range(length))
    return settled_array(
        ArrayFacet(
            prefix,
            both(first.rest, second.rest),
            max(first.low, second.low),
            least(first.high, second.high),
            _joined(first.contains, second.contains),
            _joined(first.unique, second.unique),
            _joined(first.repeating, second.repeating),
            most(first.evaluated, second.evaluated),
            _joined(first.evaluated_goals, second.evaluated_goals),
        )
    )


def item_goal(facet: ArrayFacet, index: int) -> Goal:
    return facet.prefix[index] if index < len(facet.prefix) else facet.rest


def settled_array(facet: ArrayFacet) -> ArrayFacet | None:
    """The facet with `high` no greater than the first item that cannot be; None when that is less than `low`."""
    high = facet.high
    goals = (*facet.prefix, facet.rest)
    if NEVER in goals:
        high = least(high, goals.index(NEVER))
    if high is not None and facet.low > high:
        return None
    return facet._replace(high=high)


def _meet_objects(first: ObjectFacet, second: ObjectFacet) -> ObjectFacet | None:
    named = dict(first.named)
    for name, goal in second.named:
        named[name] = both(named.get(name, ANYTHING), goal)
    facet = ObjectFacet(
        tuple(named.items()),
        _joined(first.rules, second.rules),
        _joined(first.required, second.required),
        max(first.low, second.low),
        least(first.high, second.high),
        _joined(first.some, second.some),
        _meet_evaluated(first.evaluated, second.evaluated),
    )
    return None if _is_absurd(facet, named) else facet


def _is_absurd(facet: ObjectFacet, named: dict[str, Goal]) -> bool:
    if facet.high is not None and max(facet.low, len(facet.required)) > facet.high:
        return True
    if any(named.get(name) == NEVER for name in facet.required):
        return True
    forbidding = [rule.scope for rule in facet.rules if rule.goal == NEVER and rule.scope.is_plain]
    return any(name not in scope.names for scope in forbidding for name in facet.required)


def _meet_evaluated(first: Evaluated, second: Evaluated) -> Evaluated:
    if first == second:
        return first
    return Evaluated(
        first.everything or second.everything,
        _joined(first.names, second.names),
        first.languages | second.languages,
    )


def _joined(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    if not second:
        return first
    return tuple(dict.fromkeys(first + second))


def least(first: int | None, second: int | None) -> int | None:
    """The smaller bound, where None is no bound."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def most(first: int | None, second: int | None) -> int | None:
    """The greater count, where None is all."""
    return None if first is None or second is None else max(first, second)


_MEET: dict[int, Any] = {
    NULL: _meet_constants,
    BOOLEAN: _meet_constants,
    NUMBER: _meet_numbers,
    STRING: _meet_strings,
    ARRAY: _meet_arrays,
    OBJECT: _meet_objects,
}
