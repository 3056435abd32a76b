"""What an automaton core offers. Two exist: the C++ library, and the same in Python where the library was not built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.fallback.arena import PythonArena
from lmprog_runtime.constraint.fallback.walker import PythonWalker
from lmprog_runtime.constraint.limits import DEFAULT_LIMITS, Limits
from lmprog_runtime.constraint.native import NativeArena, NativeWalker, load_library
from lmprog_runtime.constraint.vocabulary import Vocabulary


class Arena(Protocol):
    """Expressions of one constraint, which are also the states of its automaton. Thread-safe. 0 matches nothing, 1 the
    empty text. Every method raises ConstraintTooLarge, naming the limit, when it would cost too much."""

    limits: Limits

    @property
    def nbytes(self) -> int: ...
    def byte_set(self, data: bytes) -> int: ...
    def literal(self, data: bytes) -> int: ...
    def concat(self, parts: Sequence[int]) -> int: ...
    def alternate(self, members: Sequence[int]) -> int: ...
    def intersect(self, members: Sequence[int]) -> int: ...
    def complement(self, x: int) -> int: ...
    def repeat(self, x: int, low: int, high: int) -> int: ...
    def lexeme(self, x: int) -> int: ...
    def reference(self, nullable: bool) -> int: ...
    def define(self, reference: int, x: int) -> None: ...
    def members(
        self,
        pairs: Sequence[int],
        required: Sequence[bool],
        extra: int,
        separator: int,
        low: int,
        high: int,
        any_order: bool,
    ) -> int: ...
    def code_points(self, ranges: Sequence[tuple[int, int]], encoding: int) -> int: ...
    def words(self, choices: Sequence[bytes]) -> int: ...
    def is_nullable(self, x: int) -> bool: ...
    def step(self, x: int, data: bytes) -> int: ...
    def is_final(self, x: int) -> bool: ...
    def is_empty(self, x: int) -> bool | None: ...
    def seal(self, root: int, producible: bytes) -> int: ...
    def shortest(self, x: int, most: int) -> bytes | None:
        """The shortest text of a sealed state, of several the first in the order of bytes: what is left of it behind a
        byte is the shortest text of the state there. None when it is longer than `most` bytes, or not found."""
        ...


class Walker(Protocol):
    """An arena's automaton over one vocabulary's tokens."""

    def mask(self, state: int) -> tuple[NDArray[np.uint32], bool]:
        """A new array of bits: the text tokens that may follow (no end-of-sequence ids); whether the state accepts."""
        ...

    def advance(self, state: int, token_id: int) -> int:
        """The state after a token; 0 when it is not allowed or is no text."""
        ...

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        """Bytes that must come next, at most `most`; and where in them the first longer allowed token could begin
        (their length when none can)."""
        ...


def new_arena(limits: Limits = DEFAULT_LIMITS) -> Arena:
    library = load_library()
    return PythonArena(limits) if library is None else NativeArena(library, limits)


def new_walker(arena: Arena, vocabulary: Vocabulary) -> Walker:
    if isinstance(arena, NativeArena):
        return NativeWalker(arena, vocabulary)
    assert isinstance(arena, PythonArena)
    return PythonWalker(arena, vocabulary)
