"""The syntax tree of a regular expression: flags are applied, groups are gone, characters are code point ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Ranges = tuple[tuple[int, int], ...]
"""Inclusive code point ranges, sorted and disjoint."""

AnchorKind = Literal["start", "end", "line_start", "line_end", "end_or_newline", "word", "not_word"]


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    low: int
    high: int | None  # None: no bound


@dataclass(frozen=True, slots=True)
class Look:
    """(?=...), (?!...), (?<=...), (?<!...)."""

    item: Node
    is_ahead: bool
    is_negative: bool
    position: int  # in the pattern, for messages


@dataclass(frozen=True, slots=True)
class Anchor:
    kind: AnchorKind
    word: Ranges  # what a word character is, for "word" and "not_word"
    position: int


Node: TypeAlias = Chars | Sequence | Choice | Repeat | Look | Anchor
