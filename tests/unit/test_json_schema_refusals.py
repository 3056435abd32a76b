"""What is refused, and how: malformed schemas, keywords that no automaton can enforce, schemas that cost too much."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema import SchemaLimits, compile_schema
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported
from tests.support.schema_suites import writer_of


def refusal(schema, error, **options):
    text = schema if isinstance(schema, str) else json.dumps(schema)
    start = time.thread_time()
    with pytest.raises(error) as caught:
        compile_schema(text, Expressions(), **options)
    assert time.thread_time() - start < 4.0  # twice what is promised: caches of a busy machine are cold
    return str(caught.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strng"}, "type at #/type must be one of null, boolean"),
        ({"properties": {"a/b": {"type": 5}}}, "type at #/properties/a~1b/type must be"),
        ("[]", "A JSON schema is an object, true or false"),
        ("3", "A JSON schema is an object, true or false"),
        ("{", "not JSON"),
        ('{"minimum": NaN}', "NaN is not a JSON number"),
        ({"items": 5}, "The schema at #/items must be an object, true or false"),
        ({"allOf": {}}, "allOf at #/allOf must be a list of schemas"),
        ({"properties": []}, "properties at #/properties must be an object of schemas"),
        ({"required": True}, "required at #/required must be a list of names"),
        ({"required": [1]}, "required at #/required"),
        ({"dependencies": {"a": [1]}}, "dependencies at #/dependencies/a"),
        ({"minLength": -1}, "minLength at #/minLength must be a non-negative integer"),
        ({"maxItems": 1.5}, "maxItems at #/maxItems"),
        ({"multipleOf": 0}, "multipleOf at #/multipleOf must be a number above zero"),
        ({"minimum": "1"}, "minimum at #/minimum must be a number"),
        ({"enum": "a"}, "enum at #/enum must be a list"),
        ({"pattern": 1}, "pattern at #/pattern must be a string"),
        ({"$ref": "#/$defs/x"}, "$ref at #/$ref names '#/$defs/x', where there is no schema"),
        ({"$ref": "#nowhere"}, "where there is no schema"),
        ({"$ref": "#"}, "applies to itself without end"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
            "without end",
        ),
        (
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "items": [True]},
            "lists are prefixItems in 2020-12",
        ),
    ],
)
def test_malformed(schema, message):
    assert message in refusal(schema, ConstraintInvalid)


@pytest.mark.parametrize("pattern", ["ab**", "[a-", "(x", "(?P<n", "x{3,1}", "\\p{Nope}"])
def test_malformed_patterns_are_refused_with_their_place(pattern):
    message = refusal({"properties": {"p": {"pattern": pattern}}}, ConstraintInvalid)
    assert "#/properties/p/pattern" in message
    assert "position" in message


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "https://example.com/x.json"}, "$ref at #/$ref names 'https://example.com/x.json'"),
        ({"items": {"$ref": "http://json-schema.org/draft-07/schema#"}}, "$ref at #/items/$ref"),
        ({"$schema": "https://example.com/own-dialect"}, "$schema at #/$schema"),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1},
            "const at #/const is younger than the draft",
        ),
        ({"properties": {"l": {"type": "array", "uniqueItems": True}}}, "uniqueItems at #/properties/l/uniqueItems"),
        ({"not": {"items": {"type": "string"}, "uniqueItems": True}}, "uniqueItems at #/not/uniqueItems"),
        ({"minProperties": 2}, "minProperties 2"),
        ({"pattern": "(a)\\1"}, "#/pattern"),
        ('{"const": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_unenforceable(schema, message):
    assert message in refusal(schema, ConstraintUnsupported)


def test_a_member_demanded_by_its_value_needs_an_order():
    schema = {"type": "object", "not": {"additionalProperties": {"type": "integer"}}}
    assert "order='schema'" in refusal(schema, ConstraintUnsupported, order="any")
    assert writer_of(schema).accepts({"a": 1, "b": "x"})


def test_nothing_is_fetched(monkeypatch):
    import socket

    monkeypatch.setattr(socket, "socket", None)
    refusal({"$ref": "http://127.0.0.1:1/schema.json"}, ConstraintUnsupported)


def nested(opening, inner, closing, depth):
    return opening * depth + inner + closing * depth


@pytest.mark.parametrize(
    "text",
    [
        nested('{"items":', "{}", "}", 10_000),
        nested('{"items":', "{}", "}", 500),
        nested('{"allOf":[', "{}", "]}", 5_000),
        nested('{"allOf":[', "{}", "]}", 150),
        nested('{"not":', '{"type":"null"}', "}", 190),
        json.dumps({"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(5_000)}, "$ref": "#/$defs/a0"}),
        '{"minimum": ' + "9" * 5_000 + "}",
        '{"minimum": 1e999999999}',
        json.dumps({"multipleOf": 12345.678}),
        json.dumps({"contains": {}, "minContains": 200, "maxContains": 900, "minItems": 1_000}),
        json.dumps({"patternProperties": {f"a{i}": {} for i in range(40)}}),
        json.dumps({"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(30)}}),
    ],
)
def test_too_large(text):
    refusal(text, ConstraintTooLarge)


def one_of_nested(depth):
    """`oneOf` in `oneOf`, by references: the text stays small."""
    definitions = {
        f"s{i}": {
            "oneOf": [
                {"$ref": f"#/$defs/s{i + 1}"},
                {
                    "type": "object",
                    "properties": {"k": {"const": i}, "x": {"$ref": f"#/$defs/s{i + 1}"}},
                    "required": ["k"],
                },
            ]
        }
        for i in range(depth)
    }
    definitions[f"s{depth}"] = {"type": "null"}
    return {"$defs": definitions, "$ref": "#/$defs/s0"}


LARGE = {
    "oneOf nested 16 deep": one_of_nested(16),
    "nested 190 deep": json.loads(nested('{"items":', '{"type":"null"}', "}", 190)),
    "allOf 40 deep": json.loads(nested('{"allOf":[', '{"type":"null"}', "]}", 40)),
    "references through 1,000 definitions": {
        "$defs": {**{f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(1_000)}, "a1000": {}},
        "$ref": "#/$defs/a0",
    },
    "enum of 50,000 strings": {"enum": [f"value {i}" for i in range(50_000)]},
    "enum of 50,000 integers": {"enum": list(range(50_000))},
    "200 optional properties": {"properties": {f"p{i}": {"type": "string"} for i in range(200)}},
    "1,000 required properties": {"required": [f"p{i}" for i in range(1_000)]},
    "maxLength 100,000": {"maxLength": 100_000, "pattern": "^[a-z]+$"},
    "maxItems 100,000": {"items": {"type": "integer"}, "maxItems": 100_000},
    "a pattern with 2^18 deterministic states": {"pattern": "(a|b)*a(a|b){18}"},
    "60,000 nested groups": {"pattern": "(" * 60_000 + ")" * 60_000},
    "counters in counters": {"pattern": "^((a{1,50}){1,50}){1,50}$"},
    "30 conditions": {
        "type": "object",
        "properties": {"k": {"enum": list(range(30))}},
        "allOf": [
            {"if": {"properties": {"k": {"const": i}}, "required": ["k"]}, "then": {"required": [f"r{i}"]}}
            for i in range(30)
        ],
    },
    "not of 200 properties": {"type": "object", "not": {"properties": {f"a{i}": {"const": i} for i in range(200)}}},
    "a number of 400 digits": json.loads('{"minimum": ' + "9" * 400 + "}"),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("order", ["schema", "any"])
def test_large_but_fine(name, order):
    start = time.thread_time()
    with contextlib.suppress(ConstraintTooLarge):  # on a busy machine the time limit inside may come first
        assert writer_of(LARGE[name], order=order).root != Expressions.EMPTY
    assert time.thread_time() - start < 2.0


def test_limits_are_the_callers():
    schema = {"enum": [{"a": i} for i in range(20)]}
    assert writer_of(schema).accepts({"a": 3})
    assert "more than 5 different conjunctions" in refusal(schema, ConstraintTooLarge, limits=SchemaLimits(goals=5))


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": []},
        {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "minProperties": 1, "additionalProperties": False},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "array", "contains": False},
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"oneOf": [True, True]},
        {"type": "number", "multipleOf": 4, "not": {"multipleOf": 2}},
        {"const": "abc", "maxLength": 2},
        {"type": "object", "propertyNames": {"pattern": "^a"}, "required": ["b"]},
    ],
)
def test_schemas_without_any_instance(schema):
    assert "No JSON value satisfies the schema" in refusal(schema, ConstraintInvalid)
