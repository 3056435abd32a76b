"""What a graph is made of: the operations of a traced program, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from lmprog.forks import BranchName, JoinMode, OnError
from lmprog.nodes import Node
from lmprog.placeholders import Template


@dataclass(frozen=True, slots=True)
class Append:
    state: int
    node: Node
    template: Template | None  # a text with values in it
    location: str


@dataclass(frozen=True, slots=True)
class Read:
    """From here on, `reference` is what the variable (or one item of its list) was at this point of the program."""

    state: int
    name: str
    index: int | None
    reference: int


@dataclass(frozen=True, slots=True)
class SetVariable:
    state: int
    name: str
    value: Any
    template: Template | None


@dataclass(frozen=True, slots=True)
class Fork:
    state: int
    names: tuple[BranchName, ...]
    children: tuple[int, ...]
    own_sampling: tuple[Mapping[str, Any], ...] | None
    shared_sampling: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Join:
    state: int
    children: tuple[int, ...]
    mode: JoinMode
    on_error: OnError


@dataclass(frozen=True, slots=True)
class End:
    state: int
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Enter:
    state: int
    kind: Literal["scope", "defaults"]
    value: Any  # the variable, or the sampling defaults of a called program


@dataclass(frozen=True, slots=True)
class Leave:
    state: int


Op: TypeAlias = "Append | Read | SetVariable | Fork | Join | End | Enter | Leave"
