"""What the handler of a keyword sees: its schema, the goals of subschemas, the cases of goals for the same value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from lmprog_runtime.constraint.json_schema.document import Place, Resource
from lmprog_runtime.constraint.json_schema.facets import NO_CASES, Cases, union
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER, Goal, Literal

if TYPE_CHECKING:
    from lmprog_runtime.constraint.json_schema.expander import Expander


class Node(NamedTuple):
    """A schema object in a dynamic scope (core section 7.1): the resources entered on the way, outermost first."""

    place: Place
    scope: tuple[Resource, ...]


class Context(NamedTuple):
    """One schema while its keywords are worked off."""

    expander: Expander
    node: Node
    is_annotated: bool  # whether facets must record what they evaluate, for an unevaluated* keyword around them

    @property
    def schema(self) -> dict[str, Any]:
        return self.node.place.schema

    @property
    def draft(self) -> int:
        return self.node.place.resource.dialect.draft

    def at(self, *tokens: str) -> str:
        return self.node.place.at(*tokens)

    def goal(self, schema: Any) -> Goal:
        """The goal of a subschema."""
        return self.expander.goal(schema, self.node.scope)

    def cases(self, goal: Goal) -> Cases:
        """Cases of a goal for the same value, with what they evaluate when that is wanted."""
        return self.expander.expand(goal, self.is_annotated)

    def plain_cases(self, goal: Goal) -> Cases:
        return self.expander.expand(goal)

    def both(self, first: Cases, second: Cases) -> Cases:
        return self.expander.product(first, second, self.node.place)

    def either(self, parts: Iterable[Cases]) -> Cases:
        result = NO_CASES
        for part in parts:
            result = union(result, part, self.is_annotated)
        return result


Handler = Callable[[Context, bool], Cases]
"""Of a keyword: the cases in which it holds (True), or in which it fails (False)."""


def opposite(goal: Goal) -> Goal:
    """The negation of the goal of one schema."""
    if goal in (ANYTHING, NEVER):
        return NEVER if goal == ANYTHING else ANYTHING
    (literal,) = goal
    return (Literal(literal.node, not literal.holds),)
