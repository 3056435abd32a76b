"""Caps of digits and of items: they bound what a generation can write, and change nothing else."""

from __future__ import annotations

import json
from random import Random

import jsonschema
import pytest

from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.errors import ConstraintInvalid, RequestRefused
from lmprog_runtime.request import Constraint
from tests.support.constraints import small_vocabulary
from tests.support.schema_fuzz import Sampler, instance, is_comparable, label, random_schema
from tests.support.schema_suites import writer_of

NUMBERS = [
    ({"type": "integer"}, "7"),
    ({"type": "number"}, "7"),
    ({"type": "number"}, "-0."),
    ({}, "1."),
    ({"type": "integer", "minimum": 3}, "4"),
    ({"type": "number", "maximum": 3.5}, "1."),
    ({"type": "number", "maximum": 3.5}, "-4"),
    ({"multipleOf": 3}, "3"),
    ({"multipleOf": 0.25}, "5"),
    ({"type": "number", "not": {"multipleOf": 3}}, "1"),
    ({"type": "number", "not": {"enum": [1, 2]}}, "5"),
    ({"type": "integer", "not": {"maximum": 4}}, "5"),
]


@pytest.mark.parametrize(("schema", "beginning"), NUMBERS)
def test_a_number_ends_at_its_cap(schema, beginning):
    """Its digits go on for ever without, and to the cap with it."""
    for most in (8, 40):
        capped, free = writer_of(schema, max_digits=most), writer_of(schema)
        written = sum(character.isdigit() for character in beginning)
        for digit in "36":
            longest = beginning + digit * (most - written)
            assert capped.allows_beginning(longest)
            assert not capped.allows_beginning(longest + digit)
        assert free.allows_beginning(beginning + "6" * 5_000)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"const": 123456789}, "123456789"),
        ({"enum": [0.123456789, "a"]}, "0.123456789"),
        ({"type": "integer", "minimum": 123456, "maximum": 123460}, "123457"),
        ({"type": "integer", "minimum": 123456}, "123457"),
        ({"type": "number", "exclusiveMinimum": 0.12345, "maximum": 0.12346}, "0.123455"),
        ({"multipleOf": 100000}, "100000"),
        ({"type": "integer", "minimum": 2, "multipleOf": 1009}, "1009"),
        ({"type": "number"}, "1e+99"),
    ],
)
def test_a_cap_of_digits_gives_way_to_what_the_schema_demands(schema, text):
    assert writer_of(schema, max_digits=2).accepts_text(text)


LISTS = [
    {"type": "array"},
    {"type": "array", "items": {"enum": [1]}},
    {"type": "array", "prefixItems": [{"enum": [1]}]},
    {"type": "array", "minItems": 2, "items": {"enum": [1]}},
    {"not": {"type": ["null", "boolean", "number", "string", "object"]}},
    {"type": "array", "not": {"maxItems": 2}},
    {"type": "array", "unevaluatedItems": {"enum": [1]}},
]


@pytest.mark.parametrize("schema", LISTS)
@pytest.mark.parametrize("whitespace", ["compact", "dense"])
def test_a_list_ends_at_its_cap(schema, whitespace):
    for most in (3, 20):
        writer = writer_of(schema, whitespace, max_items=most)
        assert writer.accepts([1] * most)
        assert not writer.accepts([1] * (most + 1))
        assert not writer.allows_beginning(writer.text([1] * (most + 1))[:-1])
    assert writer_of(schema).accepts([1] * 5_000)


def test_a_list_with_contains_has_so_many_items_between_two_that_are_counted():
    schema = {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxContains": 2}
    writer = writer_of(schema, max_items=5)
    assert writer.accepts([2, 1, 1, 1, 1, 1])
    assert not writer.accepts([1] * 100 + [2])
    assert not writer.accepts([2] + [1] * 100)
    assert writer_of(schema).accepts([1] * 1_000 + [2])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"minItems": 9, "type": "array"}, [1] * 9),
        ({"maxItems": 9, "type": "array"}, [1] * 9),
        ({"const": [1, 2, 3, 4, 5]}, [1, 2, 3, 4, 5]),
        ({"type": "array", "prefixItems": [{"const": i} for i in range(4)]}, [0, 1, 2, 3]),
        ({"type": "array", "items": {"enum": [1, 2]}, "not": {"uniqueItems": True}}, [1, 1]),
        ({"type": "array", "contains": {"const": 1}, "minContains": 4}, [1] * 4),
    ],
)
def test_a_cap_of_items_gives_way_to_what_the_schema_demands(schema, value):
    assert writer_of(schema, max_items=1).accepts(value)


def _compiled(schema, **caps):
    try:
        return writer_of(schema, **caps), ""
    except RequestRefused as refusal:
        return None, str(refusal)


@pytest.mark.parametrize("seeds", [range(200), range(200, 400)], ids=str)
def test_caps_change_nothing_else(seeds):
    """Random schemas: the same ones are refused, what is within the caps is taken or not as without them, and what can
    be written is valid, also where branches of oneOf are told apart."""
    compared = 0
    for seed in seeds:
        random = Random(f"caps {seed}")
        schema = random_schema(random)
        capped, refusal = _compiled(schema, max_digits=2, max_items=3)
        free, expected = _compiled(schema)
        assert refusal == expected, schema
        if capped is None or free is None:
            continue
        validator = jsonschema.Draft202012Validator(schema)
        for value in (instance(random) for _ in range(20)):
            assert capped.accepts(value) == free.accepts(value), (schema, value)
            compared += 1
        for text in filter(None, (Sampler(capped.expressions, capped.root).text(random) for _ in range(4))):
            assert free.accepts_text(text), (schema, text)
            assert not is_comparable(text) or label(validator, json.loads(text)) is not False, (schema, text)
    assert compared > 10 * len(seeds)


@pytest.mark.parametrize(
    ("caps", "text", "too_long"),
    [({"max_digits": 3}, "[111]", "[1111]"), ({"max_items": 3}, "[1, 1, 1]", "[1, 1, 1, 1]")],
)
def test_caps_of_a_request_reach_the_automaton(caps, text, too_long):
    vocabulary = small_vocabulary(0, "0123456789[], ")
    for options, expected in ((caps, False), ({}, True)):
        grammar = compile_constraint(Constraint("json_schema", '{"type": "array"}', **options), vocabulary)
        assert grammar.is_accepting(grammar.advance_bytes(grammar.start, text.encode()))
        assert grammar.is_accepting(grammar.advance_bytes(grammar.start, too_long.encode())) is expected


@pytest.mark.parametrize("name", ["max_digits", "max_items"])
def test_caps_that_leave_nothing(name):
    with pytest.raises(ConstraintInvalid, match=f"{name} is 0"):
        compile_constraint(Constraint("json_schema", "{}", **{name: 0}), small_vocabulary(0))
