"""Plans: how arrays and objects are built, once it is known which of their parts can be at all.

A plan names the goals of its parts, tells whether it can be filled when only some of them have instances, and is built
when all of them are compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from lmprog_runtime.constraint.json_schema.goals import Goal

Compiled = Callable[[Goal], int]
"""The expression of a goal; EMPTY when it has no instance."""

HasInstance = Callable[[Goal], bool]


class Plan(Protocol):
    @property
    def goals(self) -> Iterable[Goal]:
        """Goals of all parts."""
        ...

    def can_be_filled(self, has_instance: HasInstance) -> bool: ...

    def build(self, compiled: Compiled) -> int: ...
