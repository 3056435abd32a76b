"""From goals to expressions: a work list instead of recursion, references where a goal needs itself, nothing empty."""

from __future__ import annotations

from typing import Any

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema.arrays import MOST_VALUES, Arrays, Brackets
from lmprog_runtime.constraint.json_schema.document import Document
from lmprog_runtime.constraint.json_schema.expander import Expander, StillExpanding
from lmprog_runtime.constraint.json_schema.facets import Cases, ConstantFacet, Facet, NumberFacet
from lmprog_runtime.constraint.json_schema.goals import NEVER, Goal
from lmprog_runtime.constraint.json_schema.inhabitance import Inhabitance, Shape
from lmprog_runtime.constraint.json_schema.layouts import layout
from lmprog_runtime.constraint.json_schema.numbers import Numbers
from lmprog_runtime.constraint.json_schema.objects import Braces, Objects
from lmprog_runtime.constraint.json_schema.options import Clock, SchemaOptions
from lmprog_runtime.constraint.json_schema.plans import Plan
from lmprog_runtime.constraint.json_schema.strings import Strings
from lmprog_runtime.constraint.json_schema.values import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING
from lmprog_runtime.errors import ConstraintTooLarge, ConstraintUnsupported

EMPTY = Expressions.EMPTY
MOST_PROBES = 4
_TEXTS = {None: b"null", True: b"true", False: b"false"}


class Compiler:
    """Compiles one document into one `Expressions`."""

    def __init__(self, document: Document, expressions: Expressions, options: SchemaOptions, clock: Clock) -> None:
        self._e = expressions
        self._clock = clock
        self._limits = options.limits
        punctuation = layout(options.whitespace, expressions)
        self._strings = Strings(expressions)
        self._numbers = Numbers(expressions, options)
        brackets = Brackets(expressions, punctuation)
        self._arrays = Arrays(brackets, options.limits.counted, self._listed, options.max_items)
        braces = Braces(expressions, self._strings, punctuation, options.order == "any")
        self._objects = Objects(braces, options.limits.alternatives, clock)
        self._expander = Expander(document, self._strings, options, clock)
        self._expander.is_disjoint = self._is_disjoint
        self._inhabitance = Inhabitance(self._known_shape)
        self._probes = 0  # questions of disjointness that came up while answering one
        self._shapes: dict[Goal, Shape] = {}
        self._done: dict[Goal, int] = {NEVER: EMPTY}
        self._open: set[Goal] = set()
        self._references: dict[Goal, int] = {}

    def compile(self) -> int:
        """The expression of the document's root; EMPTY when it has no instance."""
        root = self._expander.root_goal()
        pending = [root]
        while pending:
            self._clock.check()
            goal = pending[-1]
            missing = self._missing(goal)
            if missing:
                pending.extend(reversed(missing))
                continue
            pending.pop()
            if goal not in self._done:
                self._finish(goal)
        return self._done[root]

    def _missing(self, goal: Goal) -> list[Goal]:
        """What has to be compiled first: on the second visit, nothing."""
        if goal in self._done or goal in self._open:
            return []
        self._open.add(goal)
        if len(self._done) + len(self._open) > self._limits.goals:
            raise ConstraintTooLarge(
                f"The schema comes to more than {self._limits.goals} different conjunctions of schemas; simplify it."
            )
        return [part for part in self._shape(goal).goals() if part not in self._done and part not in self._open]

    def _finish(self, goal: Goal) -> None:
        shape = self._shape(goal)
        built = [plan.build(self._compiled) for plan in shape.plans]
        expression = self._e.alternate((*shape.scalars, *built))
        if goal in self._references:
            self._e.define(self._references[goal], expression)
        self._done[goal] = expression
        self._open.discard(goal)

    def _compiled(self, goal: Goal) -> int:
        """The expression of a goal; a reference when it is still being built."""
        if goal in self._done:
            return self._done[goal]
        if not self._inhabitance.has_instance(goal):
            return EMPTY
        found = self._references.get(goal)
        if found is None:
            found = self._references[goal] = self._e.reference()
        return found

    # -- shapes -----------------------------------------------------------------------------------------------------

    def _shape(self, goal: Goal) -> Shape:
        found = self._shapes.get(goal)
        if found is None:
            found = self._shapes[goal] = self._shape_of(goal, self._expander.expand(goal))
        return found

    def _shape_of(self, goal: Goal, cases: Cases) -> Shape:
        try:
            scalars = [self._scalar(kind, facet) for kind in (NULL, BOOLEAN, NUMBER, STRING) for facet in cases[kind]]
            plans: list[Plan] = [self._arrays.plan(facet) for facet in cases[ARRAY]]  # type: ignore[arg-type]
            for facet in cases[OBJECT]:
                plans += self._objects.plans(facet)  # type: ignore[arg-type]
        except (ConstraintUnsupported, ConstraintTooLarge) as error:
            raise type(error)(f"{error} (In the schema at {self._expander.describe(goal)}.)") from error
        return Shape(tuple(scalar for scalar in scalars if scalar != EMPTY), tuple(plans))

    def _scalar(self, kind: int, facet: Any) -> int:
        if kind == NUMBER:
            return self._numbers.text(facet)
        if kind == STRING:
            return self._strings.text(facet)
        return self._e.alternate(self._e.literal(_TEXTS[value]) for value in facet.allowed)

    # -- questions --------------------------------------------------------------------------------------------------

    def _known_shape(self, goal: Goal, is_below: bool) -> Shape | None:
        """The shape of a goal; None when it hangs on a schema that is still being expanded."""
        if goal in self._shapes:
            return self._shapes[goal]
        self._clock.check()
        try:
            cases = self._expander.expand_below(goal) if is_below else self._expander.expand(goal)
        except StillExpanding:
            return None
        shape = self._shapes[goal] = self._shape_of(goal, cases)
        return shape

    def _is_disjoint(self, goal: Goal) -> bool:
        """Whether a conjunction is proven to have no instance. What cannot be enforced cannot be proven either."""
        if self._probes >= MOST_PROBES:
            return False
        self._probes += 1
        try:
            return not self._inhabitance.has_instance(goal)
        except (ConstraintUnsupported, ConstraintTooLarge):
            return False
        finally:
            self._probes -= 1

    def _listed(self, goal: Goal) -> list[Goal] | None:
        """The values of a goal as goals, when they are constants and not many."""
        cases = self._expander.expand(goal)
        values: list[Any] = []
        for kind in (NULL, BOOLEAN, NUMBER, STRING):
            for facet in cases[kind]:
                found = self._constants(facet)
                if found is None:
                    return None
                values += found
        if cases[ARRAY] or cases[OBJECT] or len(values) > MOST_VALUES:
            return None
        return [self._expander.constant(value) for value in values]

    def _constants(self, facet: Facet) -> list[Any] | None:
        if isinstance(facet, ConstantFacet):
            return list(facet.allowed)
        if isinstance(facet, NumberFacet):
            return self._numbers.values(facet, MOST_VALUES)
        listed = self._strings.values((facet,))  # type: ignore[arg-type]
        return None if listed is None else list(listed)
