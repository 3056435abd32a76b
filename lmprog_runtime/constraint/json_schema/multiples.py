"""multipleOf: a remainder carried from digit to digit."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from math import lcm

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.errors import ConstraintTooLarge

EMPTY, EPSILON = Expressions.EMPTY, Expressions.EPSILON


def least_common_multiple(steps: Iterable[Decimal]) -> Decimal:
    """The step of the numbers that are multiples of all of them."""
    parts = [_parts(step) for step in steps]
    exponent = min(exponent for _, exponent in parts)
    number = lcm(*(number * 10 ** (own - exponent) for number, own in parts))
    return Decimal((0, tuple(map(int, str(number))), exponent))


def _parts(step: Decimal) -> tuple[int, int]:
    """A step as number x 10^exponent, with a number that does not end in a zero."""
    _, digits, exponent = step.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    while number % 10 == 0:
        number, exponent = number // 10, exponent + 1
    return number, exponent


class Multiples:
    """Magnitudes, as plain decimals, that are multiples of a step."""

    def __init__(self, expressions: Expressions, modulus: int) -> None:
        self._e = expressions
        self._most = modulus
        self._found: dict[Decimal, int] = {}
        self._zero = expressions.literal(b"0")
        self._zeros = expressions.repeat(self._zero, 0)

    def of(self, step: Decimal) -> int:
        """Multiples of a positive step. Raises ConstraintTooLarge when their automaton would be."""
        found = self._found.get(step)
        if found is None:
            found = self._found[step] = self._of(step)
        return found

    def size(self, step: Decimal) -> int:
        """Remainders that the automaton of a step tells apart."""
        number, exponent = _parts(step)
        return number * (1 + max(-exponent, 0))

    def _of(self, step: Decimal) -> int:
        if self.size(step) > self._most:
            raise ConstraintTooLarge(
                f"multipleOf {step} needs an automaton of {self.size(step)} remainders, more than {self._most}; use a "
                "rounder number."
            )
        number, exponent = _parts(step)
        if exponent > 0:
            return self._scaled(number, exponent)
        return _Remainders(self._e, number, -exponent).expression()

    def _scaled(self, number: int, exponent: int) -> int:
        """Integer multiples of number x 10^exponent: zero, or a multiple of the number with zeros behind it."""
        e = self._e
        shifted = e.concat(self._nonzero_multiples(number), e.repeat(self._zero, exponent, exponent))
        no_fraction = e.optional(e.concat(e.literal(b"."), e.repeat(self._zero, 1)))
        return e.concat(e.alternate((self._zero, shifted)), no_fraction)

    def _nonzero_multiples(self, number: int) -> int:
        return _Remainders(self._e, number, 0, with_fraction=False).positive()


class _Remainders:
    """The automaton of the multiples of modulus / 10^places.

    Its states are the remainder of the digits so far by the modulus, and how many of them stand behind the point.
    """

    def __init__(self, expressions: Expressions, modulus: int, places: int, with_fraction: bool = True) -> None:
        self._e = expressions
        self._modulus = modulus
        self._places = places
        self._with_fraction = with_fraction
        self._fractions: dict[tuple[int, int], int] = {}
        self._zeros = expressions.repeat(expressions.literal(b"0"), 0)

    def expression(self) -> int:
        e = self._e
        return e.alternate((e.concat(e.literal(b"0"), self._end(0)), self.positive()))

    def positive(self) -> int:
        """Those whose integer part does not start with a zero."""
        e = self._e
        ends = [self._end(remainder) for remainder in range(self._modulus)]
        states = [e.reference(e.is_nullable(end)) for end in ends]
        for remainder, end in enumerate(ends):
            e.define(states[remainder], e.alternate((end, self._digits(remainder, 0, states))))
        return self._digits(0, 1, states)

    def _digits(self, remainder: int, first: int, states: list[int]) -> int:
        by_next: dict[int, list[int]] = {}
        for digit in range(first, 10):
            by_next.setdefault((remainder * 10 + digit) % self._modulus, []).append(digit)
        return self._e.alternate(
            self._e.concat(self._one_of(digits), states[after]) for after, digits in by_next.items()
        )

    def _one_of(self, digits: list[int]) -> int:
        return self._e.byte_set(bytes(48 + digit for digit in digits))

    def _end(self, remainder: int) -> int:
        """What may follow the integer part: nothing, or a fraction."""
        e = self._e
        stop = EPSILON if self._is_multiple(remainder, 0) else EMPTY
        if not self._with_fraction:
            return stop
        fraction = self._fraction_digits(remainder, 0)
        return e.alternate((stop, e.concat(e.literal(b"."), fraction)))

    def _is_multiple(self, remainder: int, place: int) -> bool:
        shift: int = 10 ** (self._places - place)
        return remainder * shift % self._modulus == 0

    def _fraction_digits(self, remainder: int, place: int) -> int:
        """At least one more digit behind `place` digits of the fraction."""
        e = self._e
        if place == self._places:
            return e.repeat(e.literal(b"0"), 1) if remainder == 0 else EMPTY
        found = self._fractions.get((remainder, place))
        if found is None:
            by_next: dict[int, list[int]] = {}
            for digit in range(10):
                by_next.setdefault((remainder * 10 + digit) % self._modulus, []).append(digit)
            found = e.alternate(
                e.concat(self._one_of(digits), self._after(after, place + 1)) for after, digits in by_next.items()
            )
            self._fractions[remainder, place] = found
        return found

    def _after(self, remainder: int, place: int) -> int:
        more = self._fraction_digits(remainder, place)
        return self._e.alternate((EPSILON if self._is_multiple(remainder, place) else EMPTY, more))
