"""Each keyword: what it lets through and what it does not. Instances are written as the compact style writes them."""

from __future__ import annotations

import pytest

from tests.support.schema_fuzz import SCHEMA_URIS
from tests.support.schema_suites import writer_of

CASES = {
    "type": ({"type": "string"}, ["", "a"], [1, None, [], {}, True]),
    "type list": ({"type": ["null", "array"]}, [None, [], [1, "a"]], ["", 0, {}, False]),
    "integer": ({"type": "integer"}, [0, -1, 10**30, 1.0, 10**20], [0.5, "1", 1e-7]),
    "number": ({"type": "number"}, [0, -0.5, 1e300, 1e-300, 12.25], ["1", None]),
    "not integer": ({"type": "number", "not": {"type": "integer"}}, [0.5, 1e-7], [1, 1.0, 10**20]),
    "enum": ({"enum": ["a", 1, None, [1], {"k": "v"}]}, ["a", 1, 1.0, None, [1], {"k": "v"}], ["b", 2, [], {}, True]),
    "const": ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1]}, {}, {"a": [1, {"b": 0}]}]),
    "const false is not 0": ({"const": False}, [False], [0, None, ""]),
    "not const": ({"not": {"const": {"a": 1}}}, [{}, {"a": 2}, {"a": 1, "b": 1}, {"b": 1}, 1], [{"a": 1}, {"a": 1.0}]),
    "not enum of arrays": (
        {"type": "array", "not": {"enum": [[1], [1, 2]]}},
        [[], [2], [1, 3], [1, 2, 3]],
        [[1], [1, 2]],
    ),
    "minimum": ({"minimum": 1.5}, [1.5, 1.50001, 2, 1e20, "0"], [1.49999, 1, 0, -2, 1e-7]),
    "maximum": ({"maximum": -2}, [-2, -2.0, -2.5, -1e20], [-1.99, 0, 3, 1e20, -1e-7]),
    "exclusiveMinimum": ({"exclusiveMinimum": 0}, [0.1, 1e-9, 5], [0, 0.0, -0.0, -1]),
    "exclusiveMaximum": ({"exclusiveMaximum": 100}, [99, 99.999, -1], [100, 100.0, 100.5, 1e16]),
    "range": ({"type": "integer", "minimum": 8, "maximum": 120}, [8, 9, 10, 99, 100, 120], [7, 121, 1000, 8.5]),
    "great bound": ({"maximum": 2**63 - 1}, [2**63 - 1, 9.2e18, 1e18], [2**63, 9.3e18, 1e19]),
    "small bound": ({"minimum": 2e-10}, [2e-10, 3e-10, 1e-9, 1], [1e-10, 1.9e-10, 0]),
    "multipleOf": ({"multipleOf": 3}, [0, 3, -9, 3.0, 12], [1, 4, 3.5]),
    "multipleOf decimal": ({"multipleOf": 0.01}, [0.01, 19.99, 5, 0.1], [0.001, 1.005]),
    "multipleOf two digits": ({"multipleOf": 1.5}, [0, 1.5, 3, 4.5, -6.0], [1, 2, 0.5]),
    "multipleOf round": ({"multipleOf": 7000}, [0, 7000, 21000, 7000.0], [700, 7, 7001]),
    "not multipleOf": ({"type": "number", "not": {"multipleOf": 2}}, [1, 3, 0.5], [0, 2, 4.0]),
    "minLength": ({"minLength": 2}, ["ab", "é😀", 1], ["", "a", "😀"]),
    "maxLength": ({"maxLength": 2}, ["", "ab", "😀😀", '"\\', "\n\t"], ["abc", "😀😀😀"]),
    "pattern": ({"pattern": "b+$"}, ["b", "abb", 7], ["", "ba"]),
    "pattern and length": ({"pattern": "^[a-z]+$", "maxLength": 3}, ["a", "abc"], ["abcd", "A", ""]),
    "pattern of escaped characters": ({"pattern": '^"\\\\/\\n$'}, ['"\\/\n'], ['"', "\\/"]),
    "not pattern": ({"type": "string", "not": {"pattern": "a"}}, ["", "b"], ["a", "bab"]),
    "items": ({"items": {"type": "integer"}}, [[], [1, 2], "a"], [["a"], [1, None]]),
    "prefixItems": ({"prefixItems": [{"type": "null"}, {"const": 1}]}, [[], [None], [None, 1, "x"]], [[1], [None, 2]]),
    "prefixItems closed": ({"prefixItems": [True, True], "items": False}, [[], [1], [1, 2]], [[1, 2, 3]]),
    "item count": ({"type": "array", "minItems": 2, "maxItems": 3}, [[1, 2], [1, 2, 3]], [[], [1], [1, 2, 3, 4]]),
    "contains": ({"contains": {"const": "x"}}, [["x"], [1, "x", 2], {}], [[], [1, 2]]),
    "contains between": (
        {"contains": {"type": "string"}, "minContains": 2, "maxContains": 3, "maxItems": 5},
        [["a", "b"], [1, "a", 2, "b", "c"]],
        [["a"], ["a", "b", "c", "d"], [1, 2, 3, "a", "b", "c"]],
    ),
    "contains none": (
        {"contains": {"type": "string"}, "minContains": 0, "maxContains": 0},
        [[], [1]],
        [["a"], [1, "a"]],
    ),
    "uniqueItems": (
        {"items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
        [[], ["a", 1, "b"]],
        [["a", "a"], [1, "b", 1]],
    ),
    "uniqueItems of integers": (
        {"items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": True, "minItems": 2},
        [[0, 9], [3, 1, 2]],
        [[1], [1, 1], [1, 2, 1.0]],
    ),
    "not uniqueItems": (
        {"items": {"type": "boolean"}, "not": {"uniqueItems": True}},
        [[True, True], [True, False, True]],
        [[], [True], [True, False]],
    ),
    "properties": ({"properties": {"a": {"type": "null"}}}, [{}, {"a": None}, {"b": 1}, []], [{"a": 1}]),
    "required": ({"required": ["a", "b"]}, [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, 5], [{}, {"a": 1}, {"c": 1}]),
    "required beyond properties": (
        {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a", "b"]},
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": 1}],
    ),
    "additionalProperties": (
        {"properties": {"a": True}, "additionalProperties": {"type": "integer"}},
        [{"a": "x", "b": 1, "c": 2}, {}],
        [{"a": 1, "b": "x"}],
    ),
    "closed": (
        {"properties": {"a": True}, "additionalProperties": False},
        [{}, {"a": 1}],
        [{"b": 1}, {"a": 1, "b": 1}],
    ),
    "additionalProperties true": ({"type": "object", "additionalProperties": True}, [{}, {"x": [1]}], [[], 1]),
    "patternProperties": (
        {"patternProperties": {"^i_": {"type": "integer"}, "_s$": {"type": "string"}}, "additionalProperties": False},
        [{}, {"i_a": 1}, {"x_s": "a"}, {"i_a": 1, "x_s": "b"}],
        [{"i_a": "x"}, {"i_s": 1}, {"i_s": "a"}, {"other": 1}],
    ),
    "patternProperties and properties": (
        {"properties": {"foo": {"minimum": 3}}, "patternProperties": {"f.o": {"maximum": 5}}},
        [{"foo": 4}, {"fxo": 1}],
        [{"foo": 2}, {"foo": 6}, {"fxo": 6}],
    ),
    "propertyNames": ({"propertyNames": {"maxLength": 2}}, [{}, {"ab": 1}], [{"abc": 1}]),
    "propertyNames listed": ({"propertyNames": {"enum": ["a", "b"]}}, [{}, {"a": 1}, {"a": 1, "b": 2}], [{"c": 1}]),
    "member count": (
        {"minProperties": 1, "maxProperties": 2},
        [{"a": 1}, {"a": 1, "b": 2}],
        [{}, {"a": 1, "b": 2, "c": 3}],
    ),
    "declared member count": (
        {"properties": {"a": True, "b": True, "c": True}, "additionalProperties": False, "minProperties": 2},
        [{"a": 1, "b": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        [{}, {"a": 1}],
    ),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}, {"c": 1}], [{"a": 1}]),
    "dependentSchemas": (
        {"dependentSchemas": {"a": {"properties": {"b": {"type": "integer"}}}}},
        [{"b": "x"}, {"a": 1, "b": 2}, {"a": 1}],
        [{"a": 1, "b": "x"}],
    ),
    "allOf": ({"allOf": [{"minimum": 2}, {"maximum": 4}]}, [2, 4, "x"], [1, 5]),
    "allOf of objects": (
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"properties": {"a": {"minimum": 5}}},
            ]
        },
        [{"a": 5}],
        [{"a": 4}, {}, {"a": "x"}],
    ),
    "anyOf": ({"anyOf": [{"type": "string", "maxLength": 1}, {"type": "integer"}]}, ["a", 5], ["ab", None, 0.5]),
    "oneOf": ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, [2, 3, 4, 9], [6, 1, "x"]),
    "oneOf of overlapping objects": (
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}, {"a": 1, "c": 1}],
        [{}, {"a": 1, "b": 1}, {"c": 1}],
    ),
    "not": ({"not": {"type": ["object", "array"]}}, [1, "a", None], [{}, []]),
    "not required": ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}, {"a": 1, "b": 1}]),
    "not properties": (
        {"type": "object", "not": {"properties": {"a": {"type": "integer"}}}},
        [{"a": "x"}],
        [{}, {"a": 1}, {"b": 1}],
    ),
    "not additionalProperties": (
        {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
        [{"x": "a"}],
        [{}, {"x": 1}],
    ),
    "if then else": (
        {
            "if": {"properties": {"k": {"const": 1}}, "required": ["k"]},
            "then": {"required": ["x"]},
            "else": {"required": ["y"]},
        },
        [{"k": 1, "x": 0}, {"y": 0}, {"k": 2, "y": 0}],
        [{"k": 1}, {"k": 2, "x": 0}, {}],
    ),
    "unevaluatedProperties": (
        {
            "properties": {"a": True},
            "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {"properties": {"c": True}}],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"a": 1, "b": 1}, {"c": 1}],
        [{"b": "x"}, {"a": 1, "d": 1}],
    ),
    "unevaluatedItems": (
        {"prefixItems": [{"type": "string"}], "contains": {"const": 1}, "unevaluatedItems": {"type": "null"}},
        [["a", 1], ["a", None, 1], ["a", 1, 1]],
        [["a", 2, 1], ["a"]],
    ),
    "boolean schemas": ({"properties": {"a": False, "b": True}}, [{}, {"b": 1}], [{"a": 1}]),
    "annotations": ({"title": "t", "default": 1, "$comment": "c", "x-own": {"type": "null"}}, [1, None, {}], []),
    "unknown format": ({"format": "no-such-format", "type": "string"}, ["anything"], [1]),
    "content": ({"contentEncoding": "base64", "contentSchema": {"type": "null"}}, ["?", 1], []),
}


ONLY_IN_ORDER = "not additionalProperties"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", ["schema", "any"])
def test_keyword(name, order):
    schema, valid, invalid = CASES[name]
    if name == ONLY_IN_ORDER:
        order = "schema"  # in any order it is refused: see test_json_schema_refusals
    writer = writer_of(schema, order=order)
    assert [value for value in valid if not writer.accepts(value)] == []
    assert [value for value in invalid if writer.accepts(value)] == []


DRAFTS = {
    "draft 4 exclusive bounds": (4, {"minimum": 1, "exclusiveMinimum": True}, [2, 1.5], [1]),
    "draft 4 integers have no fraction": (4, {"type": "integer"}, [1], [1.0]),
    "draft 6 integers may": (6, {"type": "integer"}, [1, 1.0], [1.5]),
    "draft 7 item lists": (
        7,
        {"items": [{"type": "null"}], "additionalItems": {"const": 1}},
        [[None, 1, 1]],
        [[1], [None, 2]],
    ),
    "draft 7 additionalItems alone": (7, {"items": {"const": 1}, "additionalItems": False}, [[1, 1]], [[2]]),
    "draft 7 dependencies": (
        7,
        {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        [{}, {"a": 1, "b": 1}, {"c": 1, "d": 1}],
        [{"a": 1}, {"c": 1}],
    ),
    "draft 7 siblings of $ref are ignored": (
        7,
        {"definitions": {"s": {"type": "string"}}, "properties": {"x": {"$ref": "#/definitions/s", "maxLength": 1}}},
        [{"x": "long"}],
        [{"x": 1}],
    ),
    "2020-12 siblings of $ref count": (
        2020,
        {"$defs": {"s": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/s", "maxLength": 1}}},
        [{"x": "l"}],
        [{"x": "long"}, {"x": 1}],
    ),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_draft(name):
    draft, schema, valid, invalid = DRAFTS[name]
    writer = writer_of({"$schema": SCHEMA_URIS[draft], **schema})
    assert [value for value in valid if not writer.accepts(value)] == []
    assert [value for value in invalid if writer.accepts(value)] == []


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"items": [{"type": "null"}], "additionalItems": False}, [[], [None]], [[1], [None, None]]),
        ({"minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"dependencies": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}]),
        ({"definitions": {"x": {"type": "null"}}, "$ref": "#/definitions/x"}, [None], [1]),
    ],
)
def test_older_spellings_count_where_no_draft_is_declared(schema, valid, invalid):
    writer = writer_of(schema)
    assert all(map(writer.accepts, valid))
    assert not any(map(writer.accepts, invalid))
