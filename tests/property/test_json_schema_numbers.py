"""Number sets against exact decimal arithmetic, for every way that the front end writes a number."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema.facets import ANY_FORM, FRACTIONAL, INTEGRAL, PLAIN, Bound, NumberFacet
from lmprog_runtime.constraint.json_schema.multiples import least_common_multiple
from lmprog_runtime.constraint.json_schema.numbers import Numbers
from lmprog_runtime.constraint.json_schema.options import SchemaOptions

WITH_EXPONENTS = SchemaOptions(exponents=True)
digits = st.text("0123456789", min_size=1, max_size=4)


@st.composite
def plain_texts(draw):
    """A plain decimal of JSON."""
    whole = draw(digits).lstrip("0") or "0"
    fraction = draw(st.one_of(st.just(""), digits.map(lambda d: "." + d)))
    return draw(st.sampled_from(("", "-"))) + whole + fraction


@st.composite
def scientific_texts(draw):
    """Scientific notation where serialisers use it."""
    mantissa = str(draw(st.integers(1, 9))) + draw(st.one_of(st.just(""), digits.map(lambda d: "." + d)))
    exponent = draw(
        st.one_of(st.integers(16, 22).map(lambda e: f"+{e}"), st.integers(5, 12).map(lambda e: f"-{e:02d}"))
    )
    return draw(st.sampled_from(("", "-"))) + mantissa + draw(st.sampled_from("eE")) + exponent


texts = st.one_of(plain_texts(), plain_texts(), scientific_texts())
values = texts.map(Decimal)
bounds = st.one_of(st.none(), st.builds(Bound, values, st.booleans()))
forms = st.sampled_from((ANY_FORM, frozenset((PLAIN, INTEGRAL)), frozenset((PLAIN,)), frozenset((FRACTIONAL,))))


def form_of(text: str) -> str:
    if Fraction(Decimal(text)).denominator != 1:
        return FRACTIONAL
    return PLAIN if text.lstrip("-").isdecimal() else INTEGRAL


def within(value: Decimal, facet: NumberFacet) -> bool:
    low, high = facet.low, facet.high
    above = low is None or value > low.value or (value == low.value and not low.is_strict)
    below = high is None or value < high.value or (value == high.value and not high.is_strict)
    return above and below


@settings(max_examples=150, deadline=None)
@given(forms, bounds, bounds, st.frozensets(values, max_size=2), st.lists(texts, min_size=1, max_size=12))
def test_bounds_forms_and_exclusions(forms, low, high, excluded, written):
    facet = NumberFacet(forms, low, high, excluded=excluded)
    near = [str(bound.value) for bound in (low, high) if bound and bound.value.adjusted() in range(-4, 16)]
    expressions = Expressions()
    language = Numbers(expressions, WITH_EXPONENTS).text(facet)
    for text in [*written, *near]:
        if "E" in text.upper() and text in near:
            continue
        value = Decimal(text)
        wanted = form_of(text) in forms and within(value, facet) and value not in excluded
        assert expressions.matches(language, text.encode()) == wanted, (facet, text)


steps = st.sampled_from(
    [Decimal(s) for s in ("1", "2", "3", "7", "10", "60", "0.5", "0.1", "0.25", "0.03", "1.5", "12.5")]
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(steps, max_size=2), st.lists(steps, max_size=1), forms, st.lists(plain_texts(), min_size=1, max_size=12)
)
def test_multiples(multiples, others, forms, written):
    facet = NumberFacet(forms, multiples=tuple(multiples), non_multiples=tuple(others))
    expressions = Expressions()
    language = Numbers(expressions, WITH_EXPONENTS).text(facet)
    products = [format(step * 3, "f") for step in multiples]
    for text in [*written, *products]:
        ratios = [Fraction(Decimal(text)) / Fraction(step) for step in (*multiples, *others)]
        whole = [ratio.denominator == 1 for ratio in ratios]
        wanted = form_of(text) in forms and all(whole[: len(multiples)]) and not any(whole[len(multiples) :])
        assert expressions.matches(language, text.encode()) == wanted, (facet, text)


@settings(max_examples=100, deadline=None)
@given(st.frozensets(values, min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=8))
def test_constants(constants, written):
    expressions = Expressions()
    language = Numbers(expressions, WITH_EXPONENTS).text(NumberFacet(values=constants))
    for text in [*written, *(format(value, "f") for value in constants)]:
        assert expressions.matches(language, text.encode()) == (Decimal(text) in constants), (constants, text)


@given(st.lists(steps, min_size=1, max_size=4), st.integers(-500, 500))
def test_common_multiple(steps, count):
    common = least_common_multiple(steps)
    assert all((Fraction(common) / Fraction(step)).denominator == 1 for step in steps)
    value = Fraction(count, 100)
    is_multiple = all((value / Fraction(step)).denominator == 1 for step in steps)
    assert is_multiple == ((value / Fraction(common)).denominator == 1)
