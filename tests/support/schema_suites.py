"""The two labelled collections of schemas, and what it means to pass them. Both lie beside the checkout, in ../shared.

A schema passes when it compiles, every valid instance is a text of its expression and no invalid one is. A refusal is a
RequestRefused; anything else is wrong: `over` when a valid instance is rejected, `under` when an invalid one is not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema import SEPARATORS, Order, compile_schema
from lmprog_runtime.errors import RequestRefused

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
BENCH = SHARED / "jsonschemabench_dev.jsonl"
SUITE = SHARED / "json_schema_test_suite_draft2020-12"

ORDERS_TRIED = 3_000
"""Members written while other orders of an instance are searched."""

EVERY_BYTE = b"\xff" * 32
"""What a vocabulary can write that can write anything."""


@dataclass(frozen=True)
class Group:
    """A schema with its labelled instances."""

    name: str
    schema: Any
    tests: tuple[tuple[Any, bool], ...]  # (instance, is valid)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    group: Group
    seconds: float  # of processor time, to compile and seal
    refusal: str | None
    over: tuple[Any, ...] = ()
    under: tuple[Any, ...] = ()

    @property
    def verdict(self) -> str:
        if self.refusal is not None:
            return "refused"
        if self.under:
            return "under"
        return "over" if self.over else "pass"


def bench_groups() -> Iterator[Group]:
    """The schemas of JSONSchemaBench's development split."""
    for line in BENCH.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        tests = tuple((test["data"], test["valid"]) for test in row["tests"])
        yield Group(row["id"], row["schema"], tests)


def suite_groups() -> Iterator[Group]:
    """The groups of JSON-Schema-Test-Suite for draft 2020-12, which writes integers with exponents too. format.json is
    about formats as mere annotations."""
    for path in sorted(SUITE.rglob("*.json")):
        options = {"exponents": True, "formats": "annotate" if path == SUITE / "format.json" else "assert"}
        for entry in json.loads(path.read_text(encoding="utf-8")):
            tests = tuple((test["data"], test["valid"]) for test in entry["tests"])
            name = f"{path.relative_to(SUITE).with_suffix('')}: {entry['description']}"
            yield Group(name, entry["schema"], tests, options)


def run(group: Group, *, order: Order = "schema", whitespace: str = "compact", reorders: bool = False) -> Outcome:
    """One group. `reorders`: a valid instance may be written in some other order of its members, as `order="schema"`
    fixes one. Invalid ones are tried as they are; every order of them is tried where the expression has any order."""
    expressions = Expressions()
    start = time.thread_time()
    try:
        root = compile_schema(
            json.dumps(group.schema, ensure_ascii=False), expressions, whitespace, order=order, **group.options
        )
        root = expressions.arena.seal(root, EVERY_BYTE)
    except RequestRefused as refusal:
        return _refused(group, time.thread_time() - start, refusal)
    seconds = time.thread_time() - start
    writer = Writer(expressions, root, whitespace)
    accepts = writer.accepts_some_order if reorders else writer.accepts
    over = tuple(instance for instance, is_valid in group.tests if is_valid and not accepts(instance))
    under = tuple(instance for instance, is_valid in group.tests if not is_valid and writer.accepts(instance))
    return Outcome(group, seconds, None, over, under)


def writer_of(schema: Any, whitespace: str = "compact", **options: Any) -> Writer:
    """The compiled and sealed expression of a schema, given as a value or as text."""
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    expressions = Expressions()
    root = compile_schema(text, expressions, whitespace, **options)
    return Writer(expressions, expressions.arena.seal(root, EVERY_BYTE), whitespace)


def _refused(group: Group, seconds: float, refusal: RequestRefused) -> Outcome:
    """A schema that is said to have no instance passes when it has none among the labelled ones."""
    if str(refusal).startswith("No JSON value"):
        return Outcome(group, seconds, None, over=tuple(instance for instance, is_valid in group.tests if is_valid))
    return Outcome(group, seconds, f"{type(refusal).__name__}: {refusal}")


class Writer:
    """Writes instances into an expression, in the style that it was compiled for."""

    def __init__(self, expressions: Expressions, root: int, whitespace: str = "compact") -> None:
        self.expressions = expressions
        self.root = root
        self._comma, self._colon = SEPARATORS.get(whitespace, SEPARATORS["dense"])

    def accepts_text(self, text: str) -> bool:
        return self.expressions.matches(self.root, text.encode())

    def allows_beginning(self, text: str) -> bool:
        """Whether some text of the expression begins so."""
        return self._step(self.root, text) != Expressions.EMPTY

    def text(self, instance: Any) -> str:
        return json.dumps(instance, ensure_ascii=False, separators=(self._comma, self._colon))

    def accepts(self, instance: Any) -> bool:
        return self.expressions.matches(self.root, self.text(instance).encode(errors="surrogatepass"))

    def accepts_some_order(self, instance: Any) -> bool:
        """Whether some order of the members of the objects in the instance is accepted."""
        self._budget = ORDERS_TRIED
        return any(self.expressions.is_nullable(state) for state in self._after(self.root, instance))

    def _step(self, state: int, text: str) -> int:
        return self.expressions.arena.step(state, text.encode(errors="surrogatepass"))

    def _after(self, state: int, value: Any) -> Iterator[int]:
        """States after a value, over the orders of its members, each once."""
        if state == Expressions.EMPTY:
            return
        if isinstance(value, dict) and value:
            yield from _distinct(self._after_members(self._step(state, "{"), value, frozenset(value), set()))
        elif isinstance(value, list) and value:
            yield from _distinct(self._after_items(self._step(state, "["), value, 0))
        else:
            yield self._step(state, self.text(value))

    def _after_items(self, state: int, items: list[Any], index: int) -> Iterator[int]:
        for after in self._after(state, items[index]):
            if index == len(items) - 1:
                yield self._step(after, "]")
            else:
                yield from self._after_items(self._step(after, self._comma), items, index + 1)

    def _after_members(
        self, state: int, value: dict[str, Any], left: frozenset[str], seen: set[tuple[int, frozenset[str]]]
    ) -> Iterator[int]:
        if state == Expressions.EMPTY or (state, left) in seen or self._budget <= 0:
            return
        seen.add((state, left))
        self._budget -= 1
        possible = self._possible(state, left)
        later = []  # orders that pass over a member which was possible: tried last
        for name in (name for name in value if name in possible):
            others = left - {name}
            for after in self._after(self._key(state, name), value[name]):
                if not others:
                    yield self._step(after, "}")
                    continue
                following = self._step(after, self._comma)
                if possible - {name} <= self._possible(following, others):
                    yield from self._after_members(following, value, others, seen)
                else:
                    later.append((following, others))
        for following, others in later:
            yield from self._after_members(following, value, others, seen)

    def _key(self, state: int, name: str) -> int:
        return self._step(state, self.text(name) + self._colon)

    def _possible(self, state: int, names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in names if self._key(state, name) != Expressions.EMPTY)


def _distinct(states: Iterable[int]) -> Iterator[int]:
    seen: set[int] = set()
    for state in states:
        if state not in seen and state != Expressions.EMPTY:
            seen.add(state)
            yield state
