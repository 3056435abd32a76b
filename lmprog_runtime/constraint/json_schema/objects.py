"""Objects: declared members in their order, then all others, by the languages of their names.

Every name that a facet mentions becomes a member of its own, which may come once. The names that nothing mentions are
split by the languages of patternProperties and propertyNames into cells, each with the goal of its values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema.facets import ObjectFacet, Rule, Scope
from lmprog_runtime.constraint.json_schema.goals import ANYTHING, NEVER, Goal, both
from lmprog_runtime.constraint.json_schema.layouts import Layout
from lmprog_runtime.constraint.json_schema.options import Clock
from lmprog_runtime.constraint.json_schema.plans import Compiled, HasInstance
from lmprog_runtime.constraint.json_schema.strings import Strings
from lmprog_runtime.errors import ConstraintTooLarge, ConstraintUnsupported

EMPTY, EPSILON = Expressions.EMPTY, Expressions.EPSILON

MOST_NAMES = 64
"""Names of one language that are written out where they have to be counted."""


class Member(NamedTuple):
    """A member with a name that the schema mentions."""

    name: str
    goal: Goal
    is_required: bool


class Cell(NamedTuple):
    """Members with a name out of a language, which the schema does not mention."""

    language: int
    goal: Goal


class ObjectParts(NamedTuple):
    members: tuple[Member, ...]
    cells: tuple[Cell, ...]
    demanded: tuple[tuple[Cell, ...], ...]  # for each, a member of one of the cells must be there
    low: int
    high: int | None


class Braces:
    """Writes objects in a layout."""

    def __init__(self, expressions: Expressions, strings: Strings, layout: Layout, any_order: bool) -> None:
        self.expressions = expressions
        self.strings = strings
        self.any_order = any_order
        self._layout = layout
        self._keys: dict[str, int] = {}
        self._members: dict[tuple[str, int], int] = {}
        self._open = expressions.literal(b"{")
        self._close = expressions.literal(b"}")

    def member(self, name: str, value: int) -> int:
        found = self._members.get((name, value))
        if found is None:
            found = self._members[name, value] = self.expressions.concat(self._key(name), value)
        return found

    def _key(self, name: str) -> int:
        found = self._keys.get(name)
        if found is None:
            found = self._keys[name] = self.expressions.concat(self.strings.constant(name), self._layout.colon)
        return found

    def unnamed(self, language: int, value: int) -> int:
        return self.expressions.concat(self.strings.quoted(language), self._layout.colon, value)

    def members(self, pairs: Sequence[tuple[int, bool]], extra: int, low: int, high: int | None) -> int:
        return self.expressions.members(
            pairs, separator=self._layout.comma, extra=extra, low=low, high=high, any_order=self.any_order
        )

    def enclosed(self, members: int) -> int:
        """An object of the members, which are at least one."""
        gap = self._layout.gap
        return self.expressions.concat(self._open, gap, members, gap, self._close)

    def empty(self) -> int:
        return self.expressions.concat(self._open, self._layout.gap, self._close)

    @property
    def comma(self) -> int:
        return self._layout.comma

    @property
    def has_gap(self) -> bool:
        return self._layout.gap != EPSILON


class ObjectPlan:
    """One way to fill an object."""

    def __init__(self, parts: ObjectParts, braces: Braces) -> None:
        self._parts = parts
        self._braces = braces
        goals = [member.goal for member in parts.members]
        goals += [cell.goal for cells in (parts.cells, *parts.demanded) for cell in cells]
        self.goals: Iterable[Goal] = dict.fromkeys(goals)

    def can_be_filled(self, has_instance: HasInstance) -> bool:
        parts = self._parts
        if not all(has_instance(member.goal) for member in parts.members if member.is_required):
            return False
        if not all(any(has_instance(cell.goal) for cell in cells) for cells in parts.demanded):
            return False
        return not parts.low or self._has_enough(has_instance)

    def _has_enough(self, has_instance: HasInstance) -> bool:
        if any(has_instance(cell.goal) for cell in self._parts.cells):
            return True
        usable = sum(has_instance(member.goal) for member in self._parts.members)
        return usable + len(self._parts.demanded) >= self._parts.low

    def build(self, compiled: Compiled) -> int:
        parts, braces = self._parts, self._braces
        pairs = []
        for member in parts.members:
            value = compiled(member.goal)
            if value != EMPTY:
                pairs.append((braces.member(member.name, value), member.is_required))
            elif member.is_required:
                return EMPTY
        extra = self._unnamed(parts.cells, compiled)
        demanded = [self._unnamed(cells, compiled) for cells in parts.demanded]
        if EMPTY in demanded:
            return EMPTY
        return self._enclosed(pairs, extra, demanded)

    def _unnamed(self, cells: Iterable[Cell], compiled: Compiled) -> int:
        by_value: dict[int, list[int]] = {}
        for cell in cells:
            by_value.setdefault(compiled(cell.goal), []).append(cell.language)
        by_value.pop(EMPTY, None)
        e, braces = self._braces.expressions, self._braces
        return e.alternate(braces.unnamed(e.alternate(languages), value) for value, languages in by_value.items())

    def _enclosed(self, pairs: list[tuple[int, bool]], extra: int, demanded: list[int]) -> int:
        parts, braces = self._parts, self._braces
        low, high = parts.low, parts.high
        if braces.any_order or not demanded:
            pairs = pairs + [(member, True) for member in demanded]
            return self._with_empty(pairs, extra, low, high)
        return self._with_demanded(pairs, extra, demanded)

    def _with_empty(self, pairs: list[tuple[int, bool]], extra: int, low: int, high: int | None) -> int:
        braces, e = self._braces, self._braces.expressions
        members = braces.members(pairs, extra, low, high)
        if not braces.has_gap or not e.is_nullable(members):
            return EMPTY if members == EMPTY else braces.enclosed(members)
        if high == 0 or (not pairs and extra == EMPTY):
            return braces.empty()
        return e.alternate((braces.empty(), braces.enclosed(braces.members(pairs, extra, 1, high))))

    def _with_demanded(self, pairs: list[tuple[int, bool]], extra: int, demanded: list[int]) -> int:
        """Demanded members come last: whatever other member has the same name, a reader keeps the last one."""
        e, braces = self._braces.expressions, self._braces
        last = e.concat(*_joined(demanded, braces.comma))
        low = max(self._parts.low - len(demanded), 0)
        high = None if self._parts.high is None else self._parts.high - len(demanded)
        if high is not None and high < 0:
            return EMPTY
        found = []
        if low == 0 and not any(required for _, required in pairs):
            found.append(braces.enclosed(last))
        if high != 0 and (pairs or extra != EMPTY):
            before = braces.members(pairs, extra, max(low, 1), high)
            found.append(braces.enclosed(e.concat(before, braces.comma, last)))
        return e.alternate(found)


def _joined(items: list[int], separator: int) -> Iterator[int]:
    for index, item in enumerate(items):
        if index:
            yield separator
        yield item


class Objects:
    """Plans of object facets."""

    def __init__(self, braces: Braces, most_ways: int, clock: Clock) -> None:
        self._braces = braces
        self._most_ways = most_ways
        self._clock = clock
        self._strings = braces.strings
        self._e = braces.expressions
        self._in_scope: dict[tuple[str, int | None, frozenset[int]], bool] = {}
        self._cell_lists: dict[tuple[tuple[str, ...], tuple[Rule, ...], tuple[Rule, ...]], list[_RuledCell]] = {}

    def plans(self, facet: ObjectFacet) -> list[ObjectPlan]:
        """The ways to fill an object of a facet: one, times the members that can be what `some` demands."""
        return [ObjectPlan(parts, self._braces) for parts in self._parts(facet)]

    def _parts(self, facet: ObjectFacet) -> Iterator[ObjectParts]:
        names = _names(facet)
        cells = self._cells(facet, names)
        if facet.low > len(facet.required) + max(1, len(facet.some)):
            names += self._countable_names(facet, cells)
            cells = self._cells(facet, names)
        kept = tuple(Cell(cell.language, cell.goal) for cell in cells if cell.goal != NEVER)
        for way, unnamed, members in self._ways(facet, names):
            for demanded in _demands(cells, unnamed):
                self._check_order(demanded, kept)
                yield ObjectParts(tuple(members), kept, demanded, way.low, way.high)

    def _ways(
        self, facet: ObjectFacet, names: list[str]
    ) -> Iterator[tuple[ObjectFacet, tuple[Rule, ...], list[Member]]]:
        """Each way to assign what `some` demands to members that the schema mentions, or to others."""
        pending: dict[tuple[ObjectFacet, tuple[Rule, ...], int], None] = {(facet, (), 0): None}
        steps = 0
        while pending:
            self._clock.check()
            (facet, unnamed, index), _ = pending.popitem()
            members = self._members(facet, names)
            if members is None:
                continue
            if index == len(facet.some):
                yield facet, unnamed, members
                continue
            rule = facet.some[index]
            if self._is_satisfied(rule, members):
                pending[facet, unnamed, index + 1] = None
                continue
            pending.update(((way, unnamed, index + 1), None) for way in self._named_ways(facet, names, rule))
            pending[facet, (*unnamed, rule), index + 1] = None
            steps += 1
            if steps > self._most_ways:
                raise ConstraintTooLarge(
                    f"There are more than {self._most_ways} ways to give an object the members that negated keywords "
                    "demand; use fewer branches, or exclusive ones."
                )

    def _is_satisfied(self, rule: Rule, members: list[Member]) -> bool:
        """Whether a required member is what a rule demands."""
        literals = frozenset(rule.goal)
        sure = (member.name for member in members if member.is_required and literals <= frozenset(member.goal))
        return bool(self._names_in(rule.scope, sure))

    def _countable_names(self, facet: ObjectFacet, cells: Sequence[_RuledCell]) -> list[str]:
        """The other names that may be, where two of them count: no automaton can tell that two names differ, unless
        they are few, and then they are members like the others."""
        found: list[str] = []
        for cell in cells:
            if cell.goal != NEVER:
                listed = self._strings.listed(cell.language, MOST_NAMES)
                if listed is None:
                    raise ConstraintUnsupported(
                        f"minProperties {facet.low} counts members whose names the schema does not mention, and no "
                        "automaton can tell that these differ; declare names, or require one member at most."
                    )
                found += listed
        return found

    def _check_order(self, demanded: tuple[tuple[Cell, ...], ...], kept: tuple[Cell, ...]) -> None:
        """In any order, a second member of the same name could follow the demanded one and replace it."""
        if self._braces.any_order and not all(cell in kept for cells in demanded for cell in cells):
            raise ConstraintUnsupported(
                "The schema demands a member with a certain value without saying its name (by negated "
                "patternProperties or additionalProperties), which can be enforced with order='schema' only."
            )

    # -- names that the schema mentions -----------------------------------------------------------------------------

    def _members(self, facet: ObjectFacet, names: list[str]) -> list[Member] | None:
        """The members that may be; None when a required one may not."""
        goals = dict.fromkeys(names, ANYTHING)
        goals.update(facet.named)
        for rule in facet.rules:
            for name in self._names_in(rule.scope, names):
                goals[name] = both(goals[name], rule.goal)
        required = frozenset(facet.required)
        if any(goals[name] == NEVER for name in required):
            return None
        return [Member(name, goal, name in required) for name, goal in goals.items() if goal != NEVER]

    def _names_in(self, scope: Scope, names: Iterable[str]) -> list[str]:
        excluded = frozenset(scope.names)
        left = [name for name in names if name not in excluded]
        if scope.is_plain:
            return left
        return [name for name in left if self._has_language(name, scope)]

    def _has_language(self, name: str, scope: Scope) -> bool:
        key = (name, scope.inside, scope.outside)
        found = self._in_scope.get(key)
        if found is None:
            inside = () if scope.inside is None else (scope.inside,)
            found = self._strings.is_in_all(name, inside) and self._strings.is_in_none(name, scope.outside)
            self._in_scope[key] = found
        return found

    def _named_ways(self, facet: ObjectFacet, names: list[str], rule: Rule) -> Iterator[ObjectFacet]:
        """The demanded member is one that the schema mentions."""
        for name in self._names_in(rule.scope, names):
            named = dict(facet.named)
            named[name] = both(named.get(name, ANYTHING), rule.goal)
            required = tuple(dict.fromkeys((*facet.required, name)))
            yield facet._replace(named=tuple(named.items()), required=required)

    # -- names that it does not mention -----------------------------------------------------------------------------

    def _cells(self, facet: ObjectFacet, names: list[str]) -> list[_RuledCell]:
        """The other names, split by every language of a scope."""
        key = (tuple(names), facet.rules, facet.some)
        found = self._cell_lists.get(key)
        if found is None:
            found = self._cell_lists[key] = self._split_cells(facet, names)
        return found

    def _split_cells(self, facet: ObjectFacet, names: list[str]) -> list[_RuledCell]:
        free = self._strings.anything
        if names:
            free = self._e.intersect(free, self._strings.other_than(names))
        cells = [_RuledCell(free, frozenset(), ANYTHING)]
        for language in _languages(facet):
            self._clock.check()
            cells = [half for cell in cells for half in self._halves(cell, language)]
        ruled = []
        for cell in cells:
            goal = ANYTHING
            for rule in facet.rules:
                if cell.is_in(rule.scope):
                    goal = both(goal, rule.goal)
            ruled.append(cell._replace(goal=goal))
        return ruled

    def _halves(self, cell: _RuledCell, language: int) -> Iterator[_RuledCell]:
        inside = self._strings.intersection([cell.language, language])
        if inside != EMPTY:
            yield _RuledCell(inside, cell.languages | {language}, cell.goal)
        outside = self._strings.intersection([cell.language, self._e.complement(language)])
        if outside != EMPTY:
            yield _RuledCell(outside, cell.languages, cell.goal)


class _RuledCell(NamedTuple):
    language: int
    languages: frozenset[int]  # those of scopes that it is inside of; it is outside of all others
    goal: Goal

    def is_in(self, scope: Scope) -> bool:
        return not (scope.outside & self.languages) and (scope.inside is None or scope.inside in self.languages)


def _demands(cells: Sequence[_RuledCell], rules: tuple[Rule, ...]) -> Iterator[tuple[tuple[Cell, ...], ...]]:
    """The ways in which members that the schema does not mention can be what each rule demands: for each such member,
    the cells that it can be of."""
    if len(rules) < 2:
        groups = tuple(tuple(Cell(cell.language, goal) for cell, goal in _candidates(cells, rule)) for rule in rules)
        if all(groups):
            yield groups
        return
    for choice in product(*(_candidates(cells, rule) for rule in rules)):
        goals: dict[int, Goal] = {}
        for cell, goal in choice:
            goals[cell.language] = _for_both(goals.get(cell.language, goal), goal)
        if NEVER not in goals.values():
            yield tuple((Cell(language, goal),) for language, goal in goals.items())


def _candidates(cells: Sequence[_RuledCell], rule: Rule) -> list[tuple[_RuledCell, Goal]]:
    candidates = ((cell, both(cell.goal, rule.goal)) for cell in cells if cell.is_in(rule.scope))
    return [(cell, goal) for cell, goal in candidates if goal != NEVER]


def _for_both(one: Goal, other: Goal) -> Goal:
    """The goal of one member that is what two rules demand. It has to be one: two could have the same name, unless any
    member that is what one rule demands is also what the other does."""
    found = both(one, other)
    if found not in (one, other):
        raise ConstraintUnsupported(
            "The schema demands two members with different values without saying their names (by negated "
            "patternProperties or additionalProperties); declare the names."
        )
    return found


def _names(facet: ObjectFacet) -> list[str]:
    """Every name that a facet mentions, in the order of members."""
    scopes = [rule.scope for rule in (*facet.rules, *facet.some)]
    named = [name for name, _ in facet.named]
    return list(dict.fromkeys([*named, *facet.required, *(name for scope in scopes for name in scope.names)]))


def _languages(facet: ObjectFacet) -> list[int]:
    found: dict[int, None] = {}
    for rule in (*facet.rules, *facet.some):
        found.update(dict.fromkeys(sorted(rule.scope.outside)))
        if rule.scope.inside is not None:
            found[rule.scope.inside] = None
    return list(found)
