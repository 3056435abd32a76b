"""The arena of the pure Python core, with the interface that `constraint.arena.Arena` describes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from lmprog_runtime.constraint.fallback import texts
from lmprog_runtime.constraint.fallback.nodes import MemberList
from lmprog_runtime.constraint.fallback.sealing import Sealing
from lmprog_runtime.constraint.fallback.shortest import Shortest
from lmprog_runtime.constraint.limits import LimitReached, Limits, refuse

SLOWER = 5
"""How much more time this core gets than the limits say."""

P = ParamSpec("P")
T = TypeVar("T")


class PythonArena:
    """One lock around all of it; limits become the public errors here."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits._replace(
            compile_seconds=SLOWER * limits.compile_seconds, walk_seconds=SLOWER * limits.walk_seconds
        )
        self.nodes = Sealing(self.limits)
        self._shortest: Shortest | None = None
        self._lock = threading.RLock()

    def guarded(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            if self.nodes.is_sealed:
                self.nodes.start_clock(self.limits.walk_seconds)
            try:
                return function(*args, **kwargs)
            except LimitReached as error:
                refuse(error.code, self.limits)

    @property
    def nbytes(self) -> int:
        return self.nodes.nbytes

    # -- building ---------------------------------------------------------------------------------------------------

    def byte_set(self, data: bytes) -> int:
        mask = 0
        for byte in data:
            mask |= 1 << byte
        return self.guarded(self.nodes.byte_set, mask)

    def literal(self, data: bytes) -> int:
        return self.guarded(self.nodes.literal, data)

    def concat(self, parts: Sequence[int]) -> int:
        return self.guarded(self.nodes.concat, parts)

    def alternate(self, members: Sequence[int]) -> int:
        return self.guarded(self.nodes.alternate, members)

    def intersect(self, members: Sequence[int]) -> int:
        return self.guarded(self.nodes.intersect, members)

    def complement(self, x: int) -> int:
        return self.guarded(self.nodes.complement, x)

    def repeat(self, x: int, low: int, high: int) -> int:
        return self.guarded(self.nodes.repeat, x, low, high)

    def lexeme(self, x: int) -> int:
        return self.guarded(self.nodes.lexeme, x)

    def reference(self, nullable: bool) -> int:
        return self.guarded(self.nodes.reference, nullable)

    def define(self, reference: int, x: int) -> None:
        self.guarded(self.nodes.define, reference, x)

    def members(
        self,
        pairs: Sequence[int],
        required: Sequence[bool],
        extra: int,
        separator: int,
        low: int,
        high: int,
        any_order: bool,
    ) -> int:
        definition = MemberList(tuple(pairs), tuple(required), extra, separator, low, high, any_order)
        return self.guarded(self.nodes.members, definition)

    def code_points(self, ranges: Sequence[tuple[int, int]], encoding: int) -> int:
        return self.guarded(texts.code_points, self.nodes, ranges, encoding)

    def words(self, choices: Sequence[bytes]) -> int:
        return self.guarded(texts.words, self.nodes, choices)

    # -- asking -----------------------------------------------------------------------------------------------------

    def is_nullable(self, x: int) -> bool:
        return self.nodes.nullable[x]

    def step(self, x: int, data: bytes) -> int:
        return self.guarded(self.nodes.step, x, data)

    def is_final(self, x: int) -> bool:
        """Whether it accepts and no byte can follow."""
        return self.guarded(self.nodes.is_final, x)

    def is_empty(self, x: int) -> bool | None:
        return self.guarded(self.nodes.is_empty, x)

    def seal(self, root: int, producible: bytes) -> int:
        """`producible`: 32 bytes, bit b%8 of byte b//8 is set when the vocabulary can write byte b."""
        return self.guarded(self.nodes.seal, root, int.from_bytes(producible, "little"))

    def shortest(self, x: int, most: int) -> bytes | None:
        return self.guarded(self._shortest_text, x, most)

    def _shortest_text(self, x: int, most: int) -> bytes | None:
        if self._shortest is None:
            self._shortest = Shortest(self.nodes)
        return self._shortest.text(x) if self._shortest.length(x) <= most else None
