"""What can be appended to a state: immutable values without behaviour. They are built by `lmprog.language`.

`+` joins them, and text, into a `Block`. Nothing here knows of states, backends or execution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lmprog.backends.base import Constraint
from lmprog.choices import ChoicesMethod
from lmprog.errors import InvalidArgument
from lmprog.sampling import Sampling

if TYPE_CHECKING:
    from lmprog.beam import Beam
    from lmprog.reasoning import Reasoning

Appendable: TypeAlias = "Node | str | list[Any] | tuple[Any, ...]"


class Node:
    """Base of all that a program appends."""

    __slots__ = ()

    def __add__(self, other: Appendable) -> Block:
        return Block((*_parts(self), *_parts(as_node(other))))

    def __radd__(self, other: Appendable) -> Block:
        return Block((*_parts(as_node(other)), *_parts(self)))

    def __format__(self, _: str) -> str:
        kind = type(self).__name__.lower()
        raise InvalidArgument(f"A {kind} cannot be written inside a string;", hint='write "text" + gen(...) instead.')


@dataclass(frozen=True, slots=True)
class Text(Node):
    text: str


@dataclass(frozen=True, slots=True)
class Gen(Node):
    name: str | None
    sampling: Sampling
    constraint: Constraint | None = None
    heal: bool | None = None
    convert: Callable[[str], Any] | None = None  # from generated text to the value of the variable
    reasoning: Reasoning | None = None  # thoughts that are kept apart
    beam: Beam | None = None  # how a beam search writes it


@dataclass(frozen=True, slots=True)
class Select(Node):
    name: str | None
    choices: tuple[str, ...]  # at least one, no two equal
    method: ChoicesMethod
    temperature: float = 0.0
    seed: int | None = None
    wants_logprobs: bool = False


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    role: str


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    role: str


@dataclass(frozen=True, slots=True)
class Special(Node):
    token: str


@dataclass(frozen=True, slots=True)
class Block(Node):
    """Nodes in order, flat: no Block inside."""

    nodes: tuple[Node, ...]


def as_node(value: object) -> Node:
    """Text, nodes, and lists of them as one node."""
    if isinstance(value, Node):
        return value
    if isinstance(value, str):
        return Text(str.__str__(value))  # a plain str also of a placeholder, which answers no questions
    if isinstance(value, list | tuple):
        return Block(tuple(part for item in value for part in _parts(as_node(item))))
    raise InvalidArgument(
        f"A state takes text, gen, select, turns and lists of them, not {type(value).__name__};",
        hint="write str(...) if you want it as text.",
    )


def _parts(node: Node) -> tuple[Node, ...]:
    return node.nodes if isinstance(node, Block) else (node,)
