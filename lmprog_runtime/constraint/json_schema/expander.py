"""From goals to cases: what a schema demands of a value itself; the schemas of its items and members are left as goals.

In-place applicators (allOf, anyOf, oneOf, not, if, $ref, ...) are worked off here, into a union of facets per type. The
handlers of single keywords live in the modules *_keywords.py and applicators.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lmprog_runtime.constraint.json_schema import (
    applicators,
    array_keywords,
    object_keywords,
    scalar_keywords,
    unevaluated,
)
from lmprog_runtime.constraint.json_schema.absorption import Absorption
from lmprog_runtime.constraint.json_schema.context import Context, Handler, Node, opposite
from lmprog_runtime.constraint.json_schema.dialects import UNDECLARED
from lmprog_runtime.constraint.json_schema.document import Document, Place, Resource
from lmprog_runtime.constraint.json_schema.facets import ALL_CASES, NO_CASES, Cases, Facets, StringFacet, meet, union
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER, Goal, Literal
from lmprog_runtime.constraint.json_schema.options import Clock, SchemaOptions
from lmprog_runtime.constraint.json_schema.strings import Strings
from lmprog_runtime.constraint.json_schema.values import KINDS, OBJECT, STRING, identity
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge

_HANDLERS: dict[str, Handler] = {
    **scalar_keywords.HANDLERS,
    **array_keywords.HANDLERS,
    **object_keywords.HANDLERS,
    **applicators.HANDLERS,
}

_LATE = frozenset(
    (
        *("not", "if", "required", "dependencies", "dependentRequired", "dependentSchemas"),
        *("additionalProperties", "patternProperties", "propertyNames"),
    )
)
"""Keywords that mention members without declaring them: worked off last, as members come in the order of mention."""

_FEW_FACETS = 4
"""Up to here, what is superfluous or contradictory in multiplied branches is left for the compiler to find."""

_PAIRS = 16
"""Pairs of facets that are met per alternative allowed."""


class Either(NamedTuple):
    """A made-up schema: any of the goals, each of which is a single literal."""

    goals: tuple[Goal, ...]


class StillExpanding(Exception):
    """A goal below a schema that is being expanded needs that schema: nothing can be said about it yet."""


class Expander:
    """Expands goals, each once.

    `is_disjoint(goal)`, set by the compiler, tells whether a conjunction is proven to have no instance.
    """

    is_disjoint: Callable[[Goal], bool]

    def __init__(self, document: Document, strings: Strings, options: SchemaOptions, clock: Clock) -> None:
        self.document = document
        self.strings = strings
        self.options = options
        self._absorption = Absorption(lambda goal: self.is_disjoint(goal))
        self._clock = clock
        self._has_scope = document.has_dynamic_scope
        self._constants = Resource("", True, UNDECLARED)  # where made-up schemas of constants stand
        self._nodes: list[Node | Either | None] = [None]  # the first is the schema `false`
        self._numbers: dict[object, int] = {}
        self._goals: dict[Goal, Cases] = {}
        self._literals: dict[tuple[Literal, bool], Cases] = {}
        self._open: dict[tuple[Literal, bool], int] = {}  # being expanded -> level
        self._level = 0  # of values inside values

    # -- goals ------------------------------------------------------------------------------------------------------

    def root_goal(self) -> Goal:
        return self.goal(self.document.root, ())

    def goal(self, schema: Any, scope: tuple[Resource, ...]) -> Goal:
        """The goal of a schema of the document, reached in a dynamic scope."""
        if isinstance(schema, bool):
            return ANYTHING if schema else NEVER
        if not schema:
            return ANYTHING
        place = self.document.place(schema)
        if self._has_scope and place.resource.dynamic_anchors and place.resource not in scope:
            scope = (*scope, place.resource)
        return self._goal_of((id(schema), scope), Node(place, scope))

    def constant(self, value: Any) -> Goal:
        """The goal of being equal to a value."""
        place = Place({"const": value}, None, "", self._constants)
        return self._goal_of(("constant", identity(value)), Node(place, ()))

    def made_up(self, schema: dict[str, Any], context: Context) -> Goal:
        """The goal of some of the keywords of the schema at hand."""
        outer = context.node.place
        key = ("part", id(outer.schema), tuple(schema), context.node.scope)
        return self._goal_of(key, Node(Place(schema, outer, "", outer.resource), context.node.scope))

    def either_goal(self, goals: tuple[Goal, ...]) -> Goal:
        """The goal of satisfying one of the goals of single schemas."""
        if ANYTHING in goals:
            return ANYTHING
        kept = tuple(dict.fromkeys(goal for goal in goals if goal != NEVER))
        if len(kept) < 2:
            return kept[0] if kept else NEVER
        return self._goal_of(("either", kept), Either(kept))

    def _goal_of(self, key: object, node: Node | Either) -> Goal:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            self._nodes.append(node)
        return (Literal(number, True),)

    def describe(self, goal: Goal) -> str:
        """Where the schemas of a goal stand, for messages."""
        nodes = [self._nodes[literal.node] for literal in goal]
        places = [node.place.at() for node in nodes if isinstance(node, Node)]
        return " and ".join(dict.fromkeys(places)) or "#"

    # -- expansion --------------------------------------------------------------------------------------------------

    def expand(self, goal: Goal, is_annotated: bool = False) -> Cases:
        """The cases of a goal. Raises ConstraintInvalid for a schema that refers to itself in place."""
        if len(goal) == 1:
            return self._literal_cases(goal[0], is_annotated)
        if goal in self._goals and not is_annotated:
            return self._goals[goal]
        cases = ALL_CASES
        for literal in goal:
            cases = self.product(cases, self._literal_cases(literal, is_annotated), None)
        if not is_annotated:
            self._goals[goal] = cases
        return cases

    def expand_below(self, goal: Goal) -> Cases:
        """Expand the goal of an item or member, while schemas of the value around it may still be expanding.

        Raises StillExpanding when it needs one of those.
        """
        self._level += 1
        try:
            return self.expand(goal)
        finally:
            self._level -= 1

    def _literal_cases(self, literal: Literal, is_annotated: bool) -> Cases:
        key = (literal, is_annotated and literal.holds)
        found = self._literals.get(key)
        if found is not None:
            return found
        node = self._nodes[literal.node]
        if node is None:
            return NO_CASES if literal.holds else ALL_CASES
        self._clock.check()
        self._check_open(key)
        self._open[key] = self._level
        try:
            found = self._literals[key] = self._node_cases(node, *key)
        finally:
            del self._open[key]
        return found

    def _check_open(self, key: tuple[Literal, bool]) -> None:
        """Refuse to expand a schema inside itself, or too many inside each other."""
        level, limit = self._open.get(key), self.options.limits.applicators
        if level == self._level:
            where = self.describe((key[0],))
            raise ConstraintInvalid(f"The schema at {where} applies to itself without end; break the cycle.")
        if level is not None:
            raise StillExpanding
        if len(self._open) >= limit:
            raise ConstraintTooLarge(
                f"At {self.describe((key[0],))}, more than {limit} schemas apply to one value through each other "
                "($ref, allOf, ...); make the schema flatter."
            )

    def _node_cases(self, node: Node | Either, literal: Literal, is_annotated: bool) -> Cases:
        if isinstance(node, Either):
            return self._either_cases(node, literal.holds)
        keywords = unevaluated.keywords_of(node.place.schema)
        if keywords and not _hides_siblings(node.place):
            return self._unevaluated_cases(Context(self, node, True), keywords, literal.holds, is_annotated)
        context = Context(self, node, is_annotated)
        return self._holding(context) if literal.holds else self._failing(context)

    def _either_cases(self, node: Either, holds: bool) -> Cases:
        result = NO_CASES if holds else ALL_CASES
        for goal in node.goals:
            if holds:
                result = union(result, self.expand(goal))
            else:
                result = self.product(result, self.expand(opposite(goal)), None)
        return result

    def _holding(self, context: Context) -> Cases:
        cases = ALL_CASES
        for handler in _handlers(context.node.place):
            cases = self.product(cases, handler(context, True), context.node.place)
            if cases == NO_CASES:
                break
        return cases

    def _failing(self, context: Context) -> Cases:
        plain = Context(self, context.node, False)
        return plain.either(handler(plain, False) for handler in _handlers(context.node.place))

    def _unevaluated_cases(self, context: Context, keywords: list[str], holds: bool, is_annotated: bool) -> Cases:
        cases = self._holding(context)
        if holds:
            for keyword in keywords:
                cases = unevaluated.holding(context, keyword, cases)
            return cases if is_annotated else unevaluated.forgotten(cases)
        failing = self._failing(context)
        for keyword in keywords:
            failing = union(failing, unevaluated.failing(context, keyword, cases))
        return failing

    # -- conjunction ------------------------------------------------------------------------------------------------

    def product(self, first: Cases, second: Cases, place: Place | None) -> Cases:
        """Values that satisfy both."""
        if first is ALL_CASES:
            return second
        return tuple(
            one if other is free or one is other else other if one is free else self._met(kind, one, other, place)
            for kind, one, other, free in zip(KINDS, first, second, ALL_CASES, strict=True)
        )

    def _met(self, kind: int, first: Facets, second: Facets, place: Place | None) -> Facets:
        if not first or not second:
            return ()
        most = self.options.limits.alternatives
        self._clock.check()
        if len(first) * len(second) > most * _PAIRS:
            self._refuse_alternatives(place)
        if kind == STRING and len(first) * len(second) > _FEW_FACETS:
            first, second = self._merged_strings(first), self._merged_strings(second)
        met = (meet(kind, one, other) for one in first for other in second)
        found = list(dict.fromkeys(facet for facet in met if facet is not None))
        if kind == OBJECT and len(found) > _FEW_FACETS:
            found = self._absorption.reduced(found)
        if len(found) > most:
            self._refuse_alternatives(place)
        return tuple(found)

    def _merged_strings(self, facets: Any) -> Facets:
        """One facet for the same strings: languages are closed under union, so branches need not be multiplied out."""
        if any(facet.values is not None for facet in facets):
            return tuple(facets)
        return (StringFacet(languages=frozenset((self.strings.language(facets),))),)

    def _refuse_alternatives(self, place: Place | None) -> None:
        limits = self.options.limits
        raise ConstraintTooLarge(
            f"The branches of the schema at {place.at() if place else '#'} come to more than {limits.alternatives} "
            "alternatives for one value; use fewer branches, or exclusive ones."
        )


def _hides_siblings(place: Place) -> bool:
    return place.resource.dialect.ref_hides_siblings and "$ref" in place.schema


def _handlers(place: Place) -> list[Handler]:
    """Handlers of the asserting keywords of a schema, in the order in which they are worked off."""
    if _hides_siblings(place):
        return [_HANDLERS["$ref"]]
    early = [_HANDLERS[keyword] for keyword in place.schema if keyword in _HANDLERS and keyword not in _LATE]
    late = [_HANDLERS[keyword] for keyword in place.schema if keyword in _LATE]
    return early + late
