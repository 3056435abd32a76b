"""Numbers as JSON text: bounds, multiples and constants, decided digit by digit.

A constrained number is written as a plain decimal, or, where serialisers write it so (1e+16 and above, below 0.0001),
in scientific notation with one digit before the point. An unconstrained one may have an exponent of two digits too.
Each set of numbers contains all of these spellings of a number, or none, so that sets can be intersected.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import ceil, floor
from typing import NamedTuple

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema.facets import (
    ANY_FORM,
    FRACTIONAL,
    INTEGRAL,
    PLAIN,
    Bound,
    NumberFacet,
)
from lmprog_runtime.constraint.json_schema.multiples import Multiples, least_common_multiple
from lmprog_runtime.constraint.json_schema.options import SchemaOptions

EMPTY, EPSILON = Expressions.EMPTY, Expressions.EPSILON

LEAST_GREAT, LEAST_SMALL, MOST = 16, 5, 308
"""Exponents of scientific notation: 16 to 308, and -5 to -308. Python writes floats so."""

MANTISSA = 16
"""Digits after the point of a mantissa: 17 in all tell any two doubles apart."""


class Digits(NamedTuple):
    """A non-negative decimal, written out."""

    whole: str  # without leading zeros, at least "0"
    fraction: str  # without trailing zeros

    @classmethod
    def of(cls, value: Decimal) -> Digits:
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)) + "0" * max(exponent, 0)
        places = max(-exponent, 0)
        text = text.rjust(places + 1, "0")
        cut = len(text) - places
        return cls(text[:cut].lstrip("0") or "0", text[cut:].rstrip("0"))


class Signed(NamedTuple):
    """A set of numbers: the texts without sign, and those behind a minus."""

    plus: int
    minus: int


class Numbers:
    """Expressions of number sets, each built once."""

    def __init__(self, expressions: Expressions, options: SchemaOptions) -> None:
        self._e = expressions
        self._texts: dict[NumberFacet, int] = {}
        self._bounds: dict[tuple[Decimal, bool, bool], int] = {}
        self._digit = expressions.byte_set(b"0123456789")
        self._zeros = expressions.repeat(expressions.literal(b"0"), 0)
        self._some_digits = expressions.repeat(self._digit, 1)
        self._any_digits = expressions.repeat(self._digit, 0)
        self._nonzero = expressions.byte_set(b"123456789")
        self._point = expressions.literal(b".")
        self._minus = expressions.literal(b"-")
        self._most_remainders = options.limits.modulus
        self._exponents = options.exponents
        self._max_digits = options.max_digits
        self._multiples = Multiples(expressions, options.limits.modulus)

    # -- the parts of a number --------------------------------------------------------------------------------------

    @cached_property
    def _integer(self) -> int:
        return self._e.alternate((self._e.literal(b"0"), self._e.concat(self._nonzero, self._any_digits)))

    @cached_property
    def _fraction(self) -> int:
        """A point and digits, or nothing."""
        return self._e.optional(self._e.concat(self._point, self._some_digits))

    @cached_property
    def _no_fraction(self) -> int:
        """A point and zeros, or nothing."""
        return self._e.optional(self._point_zeros)

    @cached_property
    def _point_zeros(self) -> int:
        return self._e.concat(self._point, self._e.repeat(self._e.literal(b"0"), 1))

    @cached_property
    def _decimal(self) -> int:
        return self._e.concat(self._integer, self._fraction)

    @cached_property
    def _zero(self) -> int:
        return self._e.concat(self._e.literal(b"0"), self._no_fraction)

    @cached_property
    def _mantissa(self) -> int:
        digits = self._e.repeat(self._digit, 1, MANTISSA)
        return self._e.concat(self._nonzero, self._e.optional(self._e.concat(self._point, digits)))

    @cached_property
    def _top_mantissa(self) -> int:
        """Below 1.7, so that with the greatest exponent it is still a finite double."""
        e = self._e
        digits = e.concat(self._point, e.byte_set(b"0123456"), e.repeat(self._digit, 0, MANTISSA - 1))
        return e.concat(e.literal(b"1"), e.optional(digits))

    def _exponent(self, is_great: bool, low: int, high: int) -> int:
        """e and an exponent between two magnitudes."""
        low, high = max(low, LEAST_GREAT if is_great else LEAST_SMALL), min(high, MOST)
        if low > high:
            return EMPTY
        e = self._e
        sign = e.optional(e.literal(b"+")) if is_great else e.literal(b"-")
        digits = self._between(str(low), str(high))
        return e.concat(e.byte_set(b"eE"), sign, e.optional(e.literal(b"0")), digits)

    def _scientific(self, is_great: bool, low: int = 0, high: int = MOST) -> int:
        if not is_great:
            return self._e.concat(self._mantissa, self._exponent(False, low, high))
        below = self._e.concat(self._mantissa, self._exponent(True, low, min(high, MOST - 1)))
        top = self._e.concat(self._top_mantissa, self._exponent(True, max(low, MOST), high))
        return self._e.alternate((below, top))

    @cached_property
    def _great(self) -> int:
        return self._scientific(True)

    @cached_property
    def _small(self) -> int:
        return self._scientific(False)

    @cached_property
    def _magnitude(self) -> int:
        return self._e.alternate((self._decimal, self._great, self._small))

    # -- texts ------------------------------------------------------------------------------------------------------

    def text(self, facet: NumberFacet) -> int:
        """The numbers of a facet; EMPTY when there are none."""
        found = self._texts.get(facet)
        if found is None:
            found = self._texts[facet] = self._text(facet)
        return found

    def _text(self, facet: NumberFacet) -> int:
        if facet.values is not None:
            return self._listed(facet)
        numbers = self._anything if facet == NumberFacet() else self._constrained(facet)
        return self._e.lexeme(self._capped(facet, numbers))

    def _constrained(self, facet: NumberFacet) -> int:
        if any(_divides(step, multiple) for step in facet.non_multiples for multiple in facet.multiples):
            return EMPTY
        base = self._base(facet)
        sets = [*self._bound_sets(facet), *self._multiple_sets(facet)]
        if base != self._magnitude or not sets:  # bounds and multiples are magnitudes themselves, complements are not
            sets.append(Signed(base, base))
        sets += [self._complement(self._equal(value)) for value in sorted(facet.excluded)]
        sets += [self._complement(self._multiples_of(step)) for step in facet.non_multiples]
        plus = self._intersection([found.plus for found in sets])
        minus = self._intersection([found.minus for found in sets])
        return self._e.alternate((plus, self._e.concat(self._minus, minus)))

    @cached_property
    def _anything(self) -> int:
        e = self._e
        digits = e.concat(e.optional(e.literal(b"0")), e.repeat(self._digit, 1, 2))
        exponent = e.concat(e.byte_set(b"eE"), e.optional(e.byte_set(b"+-")), digits)
        free = e.concat(self._decimal, e.optional(exponent))
        return e.concat(e.optional(self._minus), e.alternate((free, self._great, self._small)))

    def _capped(self, facet: NumberFacet, numbers: int) -> int:
        """Those with few digits. All where there are none of these: what is empty must not depend on the cap, as the
        branches of oneOf are told apart by it."""
        if self._max_digits is None:
            return numbers
        bounds = [bound.value for bound in (facet.low, facet.high) if bound is not None]
        needed = max((_written_digits(value) + 1 for value in (*bounds, *facet.multiples)), default=0)
        short = self._e.intersect(numbers, self._short(max(self._max_digits, needed)))
        return short if self._e.is_empty(short) is False else numbers

    def _short(self, most: int) -> int:
        """All that has at most so many digits before its exponent."""
        e = self._e
        both_sides = e.concat(self._some_digits, self._point, self._some_digits)
        with_point = e.intersect(both_sides, e.repeat(e.byte_set(b"0123456789."), 0, most + 1))
        exponent = e.concat(e.byte_set(b"eE"), e.optional(e.byte_set(b"+-")), self._some_digits)
        mantissa = e.alternate((e.repeat(self._digit, 1, most), with_point))
        return e.concat(e.optional(self._minus), mantissa, e.optional(exponent))

    def _intersection(self, parts: list[int]) -> int:
        parts = list(dict.fromkeys(parts))
        if len(parts) == 1:
            return parts[0]
        found = self._e.intersect(*parts)
        return EMPTY if self._e.is_empty(found) else found

    def _base(self, facet: NumberFacet) -> int:
        """All texts of the forms. Multiples are decided on plain decimals alone."""
        is_decimal = bool(facet.multiples or facet.non_multiples)
        if facet.forms == ANY_FORM and not is_decimal:
            return self._magnitude
        e, parts = self._e, []
        if PLAIN in facet.forms:
            parts.append(self._integer)
        if INTEGRAL in facet.forms:
            parts.append(e.concat(self._integer, self._point_zeros))
            parts += [self._great] if self._may_be_great(facet, is_decimal) else []
        if FRACTIONAL in facet.forms:
            nonzero = e.concat(self._zeros, self._nonzero, self._any_digits)
            parts.append(e.concat(self._integer, self._point, nonzero))
            parts += [] if is_decimal else [self._small]
        return e.alternate(parts)

    def _may_be_great(self, facet: NumberFacet, is_decimal: bool) -> bool:
        """Whether `1e+16` and the like are among the texts of a facet that allows integers."""
        if FRACTIONAL not in facet.forms and not self._exponents:
            return False
        return not is_decimal or self._integers_are_multiples(facet)

    # -- multiples --------------------------------------------------------------------------------------------------

    def _integers_are_multiples(self, facet: NumberFacet) -> bool:
        return not facet.non_multiples and all(_divides(step, Decimal(1)) for step in facet.multiples)

    def _multiple_sets(self, facet: NumberFacet) -> Iterable[Signed]:
        are_integers = FRACTIONAL not in facet.forms
        steps = [step for step in facet.multiples if not (are_integers and _divides(step, Decimal(1)))]
        if steps:
            common = least_common_multiple(steps)
            together = [common] if self._multiples.size(common) <= self._most_remainders else steps
            yield from map(self._multiples_of, together)

    def _multiples_of(self, step: Decimal) -> Signed:
        found = self._multiples.of(step)
        if _divides(step, Decimal(1)):
            found = self._e.alternate((found, self._great))
        return Signed(found, found)

    # -- constants --------------------------------------------------------------------------------------------------

    def values(self, facet: NumberFacet, most: int) -> list[Decimal] | None:
        """All numbers of a facet, when they are listed or are few integers."""
        low, high = facet.low, facet.high
        values: Iterable[Decimal]
        if facet.values is not None:
            values = sorted(facet.values)
        elif FRACTIONAL in facet.forms or low is None or high is None or high.value - low.value > most:
            return None
        else:
            values = map(Decimal, range(floor(low.value), ceil(high.value) + 1))
        return [value for value in values if _satisfies(value, facet)]

    def _listed(self, facet: NumberFacet) -> int:
        values = [value for value in sorted(facet.values or ()) if _satisfies(value, facet)]
        sets = [self._equal(value) for value in values if not _is_short_integer(value)]
        short = [int(value) for value in values if _is_short_integer(value)]
        plus = self._e.alternate((self._integers(n for n in short if n >= 0), *(found.plus for found in sets)))
        minus = self._e.alternate((self._integers(-n for n in short if n <= 0), *(found.minus for found in sets)))
        if facet.forms != ANY_FORM:
            plus, minus = (self._intersection([self._base(facet), part]) for part in (plus, minus))
        return self._e.alternate((plus, self._e.concat(self._minus, minus)))

    def _integers(self, values: Iterable[int]) -> int:
        return self._e.concat(self._e.words(str(value).encode() for value in values), self._no_fraction)

    def _equal(self, value: Decimal) -> Signed:
        e, digits = self._e, Digits.of(value.copy_abs())
        whole = e.literal(digits.whole.encode())
        if not value:
            return Signed(self._zero, self._zero)
        if digits.fraction:
            decimal = e.concat(whole, self._point, e.literal(digits.fraction.encode()), self._zeros)
        else:
            decimal = e.concat(whole, self._no_fraction)
        scientific = (
            self._with_exponent(value.adjusted(), self._equal(_mantissa(value)).plus) if _is_extreme(value) else EMPTY
        )
        decimal = e.alternate((decimal, scientific))
        return Signed(EMPTY, decimal) if value < 0 else Signed(decimal, EMPTY)

    def _complement(self, numbers: Signed) -> Signed:
        return Signed(*(self._e.complement(part) for part in numbers))

    # -- bounds -----------------------------------------------------------------------------------------------------

    def _bound_sets(self, facet: NumberFacet) -> Iterable[Signed]:
        if facet.low is not None:
            yield self._at_least(*facet.low)
        if facet.high is not None:
            mirrored = self._at_least(facet.high.value.copy_negate(), facet.high.is_strict)
            yield Signed(mirrored.minus, mirrored.plus)

    def _at_least(self, value: Decimal, is_strict: bool) -> Signed:
        """Numbers from a value on, without the value when the bound is strict."""
        magnitude = self._compared(value.copy_abs(), value >= 0, is_strict)
        if value > 0:
            return Signed(magnitude, EMPTY)
        if value < 0:
            return Signed(self._magnitude, magnitude)
        return Signed(magnitude, EMPTY if is_strict else self._zero)

    def _compared(self, value: Decimal, is_low: bool, is_strict: bool) -> int:
        """Magnitudes above (`is_low`) or below a magnitude."""
        if not value and is_low and not is_strict:
            return self._magnitude
        key = (value, is_low, is_strict)
        found = self._bounds.get(key)
        if found is None:
            digits = Digits.of(value)
            decimal = self._decimal_above(digits, is_strict) if is_low else self._decimal_below(digits, is_strict)
            scientific = self._scientific_compared(value, is_low, is_strict)
            found = self._bounds[key] = self._e.alternate((decimal, *scientific))
        return found

    def _decimal_above(self, bound: Digits, is_strict: bool) -> int:
        e = self._e
        same = e.concat(e.literal(bound.whole.encode()), self._fraction_above(bound.fraction, is_strict))
        return e.alternate((e.concat(self._whole_from(str(int(bound.whole) + 1)), self._fraction), same))

    def _decimal_below(self, bound: Digits, is_strict: bool) -> int:
        e = self._e
        same = e.concat(e.literal(bound.whole.encode()), self._fraction_below(bound.fraction, is_strict))
        if bound.whole == "0":
            return same
        return e.alternate((e.concat(self._whole_to(str(int(bound.whole) - 1)), self._fraction), same))

    def _scientific_compared(self, value: Decimal, is_low: bool, is_strict: bool) -> list[int]:
        if not value:
            return [self._great, self._small] if is_low else []
        size = value.adjusted()
        parts = [self._same_exponent(value, is_low, is_strict)]
        if is_low:
            parts += [self._scientific(True, size + 1), self._scientific(False, 0, -size - 1)]
        else:
            parts += [self._scientific(True, 0, size - 1), self._scientific(False, -size + 1)]
        return parts

    def _same_exponent(self, value: Decimal, is_low: bool, is_strict: bool) -> int:
        if not _is_extreme(value):
            return EMPTY
        digits = Digits.of(_mantissa(value))
        mantissa = self._decimal_above(digits, is_strict) if is_low else self._decimal_below(digits, is_strict)
        return self._with_exponent(value.adjusted(), mantissa)

    def _with_exponent(self, exponent: int, mantissas: int) -> int:
        """Scientific notation with one exponent and the mantissas of a set."""
        allowed = self._top_mantissa if exponent == MOST else self._mantissa
        written = self._exponent(exponent > 0, abs(exponent), abs(exponent))
        return self._e.concat(self._intersection([allowed, mantissas]), written)

    # -- digits -----------------------------------------------------------------------------------------------------

    def _whole_from(self, low: str) -> int:
        """Integers without leading zeros from a positive one on."""
        longer = self._e.concat(self._nonzero, self._e.repeat(self._digit, len(low)))
        return self._e.alternate((self._between(low, "9" * len(low)), longer))

    def _whole_to(self, high: str) -> int:
        """Integers without leading zeros up to one."""
        if len(high) == 1:
            return self._between("0", high)
        shorter = self._e.concat(self._nonzero, self._e.repeat(self._digit, 0, len(high) - 2))
        return self._e.alternate((self._e.literal(b"0"), shorter, self._between("1" + "0" * (len(high) - 1), high)))

    def _between(self, low: str, high: str) -> int:
        """Integers without leading zeros between two positive ones (or two single digits)."""
        if len(low) == len(high):
            return self._same_length(low, high)
        lengths = (self._any_of_length(length) for length in range(len(low) + 1, len(high)))
        ends = (self._same_length(low, "9" * len(low)), self._same_length("1" + "0" * (len(high) - 1), high))
        return self._e.alternate((*ends, *lengths))

    def _any_of_length(self, length: int) -> int:
        return self._e.concat(self._nonzero, self._e.repeat(self._digit, length - 1, length - 1))

    def _same_length(self, low: str, high: str) -> int:
        """Digit strings of one length between two of that length; from the last digit to the first, to not recurse."""
        e = self._e
        above = below = both = EPSILON  # suffixes >= that of low, <= that of high, and both
        for index in range(len(low) - 1, -1, -1):
            free = e.repeat(self._digit, len(low) - index - 1, len(low) - index - 1)
            first, last = low[index], high[index]
            inner = e.concat(self._span(first, last, 1), free)
            if first == last:
                both = e.concat(e.literal(first.encode()), both)
            elif first < last:
                both = e.alternate((self._then(first, above), inner, self._then(last, below)))
            else:
                both = EMPTY
            above = e.alternate((self._then(first, above), e.concat(self._span(first, ":", 1), free)))
            below = e.alternate((self._then(last, below), e.concat(self._span("/", last, 1), free)))
        return both

    def _then(self, digit: str, rest: int) -> int:
        return self._e.concat(self._e.literal(digit.encode()), rest)

    def _span(self, low: str, high: str, inset: int) -> int:
        """One digit between two characters, which are left out."""
        return self._e.byte_set(bytes(range(ord(low) + inset, ord(high))))

    def _fraction_above(self, bound: str, is_strict: bool) -> int:
        """(point, digits)? above 0.bound. `bound` has no trailing zeros."""
        e = self._e
        nonzero = e.concat(self._zeros, self._nonzero, self._any_digits)
        rest = nonzero if is_strict else self._any_digits
        for digit in reversed(bound):
            rest = e.alternate((self._then(digit, rest), e.concat(self._span(digit, ":", 1), self._any_digits)))
        return self._with_point(rest, is_strict=is_strict or bool(bound))

    def _fraction_below(self, bound: str, is_strict: bool) -> int:
        """(point, digits)? below 0.bound. A shorter one is less, as `bound` has no trailing zeros."""
        e = self._e
        rest = EMPTY if is_strict else self._zeros
        for digit in reversed(bound):
            rest = e.alternate(
                (EPSILON, self._then(digit, rest), e.concat(self._span("/", digit, 1), self._any_digits))
            )
        return self._with_point(rest, is_strict=is_strict and not bound)

    def _with_point(self, digits: int, is_strict: bool) -> int:
        """A point and at least one digit of these; or, unless the bound excludes zero, nothing."""
        some = self._intersection_of_digits(digits)
        found = self._e.concat(self._point, some)
        return found if is_strict else self._e.optional(found)

    def _intersection_of_digits(self, digits: int) -> int:
        if digits == EMPTY:
            return EMPTY
        return self._e.intersect(digits, self._some_digits) if self._e.is_nullable(digits) else digits


def _mantissa(value: Decimal) -> Decimal:
    """The magnitude's mantissa between 1 and 10, without the rounding of decimal arithmetic."""
    digits = value.as_tuple().digits
    return Decimal((0, digits, 1 - len(digits)))


def _written_digits(value: Decimal) -> int:
    digits = Digits.of(value.copy_abs())
    return len(digits.whole) + len(digits.fraction)


def _is_extreme(value: Decimal) -> bool:
    """Whether serialisers write a number of this size in scientific notation."""
    return LEAST_GREAT <= value.adjusted() <= MOST or LEAST_SMALL <= -value.adjusted() <= MOST


def _divides(step: Decimal, value: Decimal) -> bool:
    return (Fraction(value) / Fraction(step)).denominator == 1


def _is_short_integer(value: Decimal) -> bool:
    return value.copy_abs() < 10**LEAST_GREAT and value == int(value)


def _satisfies(value: Decimal, facet: NumberFacet) -> bool:
    integral = not Digits.of(value.copy_abs()).fraction
    return (
        _is_within(value, facet.low, facet.high)
        and value not in facet.excluded
        and bool(facet.forms & ({PLAIN, INTEGRAL} if integral else {FRACTIONAL}))
        and all(_divides(step, value) for step in facet.multiples)
        and not any(_divides(step, value) for step in facet.non_multiples)
    )


def _is_within(value: Decimal, low: Bound | None, high: Bound | None) -> bool:
    above = low is None or value > low.value or (value == low.value and not low.is_strict)
    below = high is None or value < high.value or (value == high.value and not high.is_strict)
    return above and below
