"""What the caller of the front end may choose, and what a schema may cost."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge

Order = Literal["schema", "any"]
Formats = Literal["assert", "annotate"]


class SchemaLimits(NamedTuple):
    """Costs of one schema. One that passes any of them is refused with ConstraintTooLarge, which names the limit."""

    depth: int = 200  # schemas inside each other in the text
    applicators: int = 48  # schemas that apply to one value through each other ($ref, allOf, ...)
    alternatives: int = 1_000  # of one type, for one value, once branches are multiplied out
    goals: int = 20_000  # different conjunctions of schemas for items and members
    counted: int = 20_000  # positions x counters of one array
    modulus: int = 2_000  # of multipleOf, once its trailing zeros are taken off
    seconds: float = 1.5  # of the front end, checked as it goes; the automaton has its own clock


DEFAULT_LIMITS = SchemaLimits()


class Clock:
    """The time limit of one compilation, asked from inside every loop that can grow with the schema.

    Counts processor time of the thread: whether a schema is refused must not depend on how busy the machine is.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.thread_time() + seconds

    def check(self) -> None:
        """Raises ConstraintTooLarge when the time is up."""
        if time.thread_time() > self._deadline:
            raise ConstraintTooLarge(
                f"The schema takes more than {self._seconds:g} s to compile; make it smaller or its branches exclusive."
            )


class SchemaOptions(NamedTuple):
    """How instances are written, which rule formats follow, and what keeps a generation from going on for ever.

    A cap never makes a schema unsatisfiable: it gives way to what the schema itself demands.
    """

    whitespace: str = "compact"
    order: Order = "schema"
    formats: Formats = "assert"
    exponents: bool = False  # in integers
    limits: SchemaLimits = DEFAULT_LIMITS
    max_digits: int | None = None  # of a number that is no constant, on both sides of its point together
    max_items: int | None = None  # of a list without maxItems

    def check(self) -> None:
        """Raises ConstraintInvalid for a cap that leaves nothing."""
        for name, cap in (("max_digits", self.max_digits), ("max_items", self.max_items)):
            if cap is not None and cap < 1:
                raise ConstraintInvalid(f"{name} is {cap}; give at least 1, or None for no cap.")
