"""The parts of a grammar text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    ignores_case: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """One character between two."""

    low: str
    high: str


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression with its flags."""

    source: str
    flags: str
    line: int


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    line: int

    @property
    def is_terminal(self) -> bool:
        return self.name.isupper()


@dataclass(frozen=True, slots=True)
class Repeated:
    item: Item
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives, each a sequence of items."""

    branches: tuple[tuple[Item, ...], ...]


Item: TypeAlias = Literal | Span | Pattern | Name | Repeated | Choice


@dataclass
class Grammar:
    rules: dict[str, Choice] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)  # where each rule stands
    ignored: list[Name] = field(default_factory=list)

    @property
    def start(self) -> str:
        return "start" if "start" in self.rules or "root" not in self.rules else "root"
