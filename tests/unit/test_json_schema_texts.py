"""How instances are written: order of members, blanks, spellings of strings and numbers; references and recursion."""

from __future__ import annotations

import json

import pytest

from lmprog_runtime.errors import ConstraintInvalid
from tests.support.schema_suites import writer_of

FRUIT = {"properties": {"zebra": {"type": "integer"}, "apple": {"type": "string"}, "mango": {"const": 1}}}
CLOSED = {"type": "object", "additionalProperties": False}


# -- order ----------------------------------------------------------------------------------------------------------


def test_declared_members_come_in_their_order_and_optional_ones_may_be_left_out():
    writer = writer_of({**CLOSED, **FRUIT})
    accepted = [{"zebra": 1, "apple": "", "mango": 1}, {"zebra": 1, "mango": 1}, {"apple": "a"}, {}]
    assert all(map(writer.accepts, accepted))
    assert not writer.accepts({"apple": "", "zebra": 1})
    assert not writer.accepts({"mango": 1, "zebra": 1})


def test_required_members_are_forced_one_after_the_other():
    writer = writer_of({**CLOSED, **FRUIT, "required": ["mango", "zebra", "apple"]})
    assert writer.accepts_text('{"zebra": 1, "apple": "a", "mango": 1}')
    assert not writer.allows_beginning('{"a')
    assert not writer.allows_beginning('{"zebra": 1, "m')


def test_other_members_come_after_the_declared_ones():
    writer = writer_of({"type": "object", "properties": {"b": {"const": "bar"}, "a": {"const": "BAD"}}})
    assert writer.accepts({"b": "bar", "x": 1, "y": 2})
    assert not writer.accepts({"x": 1, "b": "bar"})
    assert not writer.accepts_text('{"b": "bar", "x": 1, "a": "other"}')  # a late declared member is no other member
    assert not writer.accepts({"b": "bar", "a": "other"})


def test_members_of_allof_and_references_come_in_the_order_of_their_mention():
    base = {"$defs": {"base": {"properties": {"id": {"type": "integer"}}, "required": ["id"]}}}
    inherits = writer_of({**base, "allOf": [{"$ref": "#/$defs/base"}], "properties": {"name": {"type": "string"}}})
    extends = writer_of({**base, "properties": {"name": {"type": "string"}}, "allOf": [{"$ref": "#/$defs/base"}]})
    assert inherits.accepts_text('{"id": 1, "name": "a"}')
    assert extends.accepts_text('{"name": "a", "id": 1}')
    assert not inherits.accepts_text('{"name": "a", "id": 1}')


def test_any_order_takes_each_member_once():
    writer = writer_of({**FRUIT, "required": ["zebra"]}, order="any")
    assert writer.accepts({"mango": 1, "other": None, "zebra": 1, "apple": "a"})
    assert not writer.accepts({"mango": 1, "apple": "a"})
    assert not writer.accepts_text('{"zebra": 1, "zebra": 2}')


@pytest.mark.parametrize("order", ["schema", "any"])
def test_swapping_definitions_changes_nothing(order):
    definitions = {"a": {"properties": {"x": {"$ref": "#/$defs/b"}}}, "b": {"enum": ["p", "q"]}}
    swapped = dict(reversed(definitions.items()))
    texts = ['{"x": "p"}', '{"x": "r"}', '{"y": 1}', "{}", "3"]
    found = [
        [writer_of({"$defs": found, "$ref": "#/$defs/a"}, order=order).accepts_text(text) for text in texts]
        for found in (definitions, swapped)
    ]
    assert found[0] == found[1] == [True, False, True, True, True]


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["schema", "any"])
def test_no_other_spelling_smuggles_a_declared_name_in(order):
    writer = writer_of({"properties": {"ab": {"type": "null"}, 'q"é\n': {"type": "null"}}}, order=order)
    for name in (
        '"ab"',
        '"\\u0061b"',
        '"a\\u0062"',
        '"q\\"é\\n"',
        '"q\\"\\u00e9\\n"',
        '"q\\u0022é\\n"',
        '"q\\"é\\u000a"',
    ):
        assert not writer.accepts_text(f"{{{name}: 1}}")
    assert writer.accepts_text('{"ab": null, "q\\"é\\n": null}')


def test_no_other_spelling_smuggles_an_excluded_string_in():
    writer = writer_of({"type": "string", "not": {"enum": ["a", "é"]}})
    for text in ('"a"', '"\\u0061"', '"é"', '"\\u00e9"', '"\\u00E9"'):
        assert not writer.accepts_text(text)
    assert writer.accepts_text('"b"')


def test_a_member_demanded_by_its_value_cannot_be_replaced_by_a_later_one_of_its_name():
    writer = writer_of({"type": "object", "not": {"additionalProperties": {"type": "integer"}}})
    assert writer.accepts_text('{"a": 1, "b": "x"}')
    assert not writer.accepts_text('{"b": "x", "b": 1}')


# -- strings and numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ['"\\n"', '"\\u0001"', '"\\u001F"', '"\\u001f"', '"é"', '"😀"', '"\x7f"', '"\\\\\\""', '"/"']
)
def test_strings_are_written_as_serialisers_do(text):
    assert writer_of({"type": "string"}).accepts_text(text)


@pytest.mark.parametrize("text", ['"\n"', '"\\u0041"', '"\\/"', '"\\ud800"', '"\\x"', '"a', "'a'"])
def test_other_spellings_are_not(text):
    assert not writer_of({"type": "string"}).accepts_text(text)


@pytest.mark.parametrize("text", ["1", "-0", "1.0", "1.000", "123456789012345678901234567890"])
def test_integers(text):
    assert writer_of({"type": "integer"}).accepts_text(text)


@pytest.mark.parametrize("text", ["1e16", "1e+16", "1.5E+300", "-1e+016"])
def test_integers_have_an_exponent_on_request_only(text):
    """Python's json reads one as a float, which pydantic refuses for an int."""
    schema = {"type": "integer", "minimum": -1e300}
    assert not writer_of(schema).accepts_text(text)
    assert writer_of(schema, exponents=True).accepts_text(text) or text == "1.5E+300"
    assert writer_of({"type": "integer"}, exponents=True).accepts_text(text)
    assert writer_of({"type": "number"}).accepts_text(text)


@pytest.mark.parametrize("text", ["01", "1.", "1.01", "+1", "1e-7", "1e3", ".0", "--1", "1e", "0x1", "1e309", "NaN"])
def test_no_integers(text):
    assert not writer_of({"type": "integer"}).accepts_text(text)


@pytest.mark.parametrize("text", ["0.5", "1e3", "12.5E-07", "-0.0", "1e+308", "5e-300"])
def test_numbers(text):
    assert writer_of({"type": "number"}).accepts_text(text)


# -- blanks ---------------------------------------------------------------------------------------------------------

VALUE = {"a": [1, {}], "b": {"c": []}}
STYLES = {
    "compact": [json.dumps(VALUE)],
    "dense": [json.dumps(VALUE, separators=(",", ":"))],
    "flexible": [json.dumps(VALUE, indent=i) for i in (None, 0, 2, 8, "\t")]
    + ['{ "a" : [ 1 , { } ],\r\n"b":{"c":[]}}'],
    "[ ]{0,2}": ['{  "a"  :[1,{  }], "b":{"c":[]}}', json.dumps(VALUE)],
}


@pytest.mark.parametrize("style", STYLES)
def test_style(style):
    writer = writer_of({}, style)
    assert [text for text in STYLES[style] if not writer.accepts_text(text)] == []


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("compact", '{"a":1}'),
        ("compact", '{ "a": 1}'),
        ("compact", '{"a": 1} '),
        ("compact", "[1,2]"),
        ("dense", "[1, 2]"),
        ("flexible", "[\n\n1]"),
        ("flexible", "[  1]"),
        ("flexible", "[\n" + " " * 41 + "1]"),
        ("flexible", " 1"),
        ("flexible", "1\n"),
        ("[ ]{0,2}", "[   1]"),
    ],
)
def test_blanks_are_bounded(style, text):
    assert not writer_of({}, style).accepts_text(text)


@pytest.mark.parametrize("whitespace", ["none", "a?", r"\s*", "[ ", ".*"])
def test_other_whitespace_is_refused(whitespace):
    with pytest.raises(ConstraintInvalid):
        writer_of({}, whitespace)


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_empty_objects_where_members_may_be_missing(whitespace):
    writer = writer_of({"properties": {"a": True}, "maxProperties": 0}, whitespace)
    assert writer.accepts_text("{}")
    assert not writer.accepts_text('{"a": 1}')


# -- references -----------------------------------------------------------------------------------------------------

NODE = {"properties": {"value": {"type": "integer"}, "children": {"$ref": "#/$defs/list"}}, "required": ["value"]}
TREE = {
    "$defs": {"node": {**CLOSED, **NODE}, "list": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "$ref": "#/$defs/node",
}


def test_recursion_has_no_depth_limit():
    writer = writer_of(TREE)
    text = '{"value": 1, "children": [' * 500 + '{"value": 1}' + "]}" * 500
    assert writer.accepts_text(text)
    assert not writer.accepts_text(text.replace('{"value": 1}', '{"value": "x"}'))


def test_linked_list():
    schema = {
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        **CLOSED,
    }
    writer = writer_of(schema)
    assert writer.accepts({"next": {"next": None}})
    assert not writer.accepts({"next": {}})


def test_an_optional_member_without_instance_is_never_begun():
    loop = {"type": "object", "properties": {"l": {"$ref": "#/properties/loop"}}, "required": ["l"]}
    writer = writer_of({**CLOSED, "properties": {"loop": loop, "ok": True}})
    assert not writer.allows_beginning('{"l')
    assert writer.accepts({"ok": 1})


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"$defs": {"a/b~c%d": {"type": "null"}}, "$ref": "#/$defs/a~1b~0c%25d"}, [None], [1]),
        ({"$defs": {"x": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}, [None], [1]),
        ({"$id": "http://a/b.json", "$defs": {"x": {"$id": "c.json", "type": "null"}}, "$ref": "c.json"}, [None], [1]),
        ({"$id": "http://a/b.json", "$defs": {"x": {"type": "null"}}, "$ref": "http://a/b.json#/$defs/x"}, [None], [1]),
        ({"$id": "urn:x:y", "$defs": {"x": {"type": "null"}}, "$ref": "#/$defs/x"}, [None], [1]),
        (
            {"properties": {"a": {"items": {"type": "null"}}, "b": {"$ref": "#/properties/a/items"}}},
            [{"b": None}],
            [{"b": 1}],
        ),
        ({"prefixItems": [{"type": "null"}, {"$ref": "#/prefixItems/0"}]}, [[None, None]], [[None, 1]]),
        ({"own": {"x": {"type": "null"}}, "$ref": "#/own/x"}, [None], [1]),
        ({"properties": {"$ref": {"type": "null"}}}, [{"$ref": None}], [{"$ref": 1}]),
        ({"enum": [{"$ref": "#/x"}, {"$id": "#"}]}, [{"$ref": "#/x"}], [None]),
    ],
)
def test_references(schema, valid, invalid):
    writer = writer_of(schema)
    assert all(map(writer.accepts, valid))
    assert not any(map(writer.accepts, invalid))


def test_dynamic_reference_meets_the_outermost_anchor():
    schema = {
        "$id": "http://a/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {
            "tree": {
                "$id": "tree",
                "$dynamicAnchor": "node",
                "type": "object",
                "properties": {"data": True, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
            }
        },
    }
    writer = writer_of(schema)
    assert writer.accepts({"children": [{"data": 1}]})
    assert not writer.accepts({"children": [{"daat": 1}]})
