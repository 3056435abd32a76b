"""Types as JSON schemas, JSON as typed values, and what is said when one does not fit the other."""

from __future__ import annotations

import json
import sys
import typing
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, timedelta, timezone
from enum import Enum, IntEnum
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union

import pytest
from pydantic import Field
from typing_extensions import NotRequired, Required

from lmprog.errors import InvalidArgument, InvalidOutput
from lmprog.schema import describe, from_json, to_json_schema

T = TypeVar("T")
UserId = NewType("UserId", int)


class Color(Enum):
    """What it looks like."""

    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Address:
    """Where someone lives."""

    street: str
    code: Annotated[str, "postal code"] = ""


@dataclass
class Person:
    """Someone.

    Attributes:
        age: in years,
            rounded down
    """

    name: str
    age: int
    home: Address
    others: list[Address] = field(default_factory=list)
    mood: Color | None = field(default=None, metadata={"description": "today"})


@dataclass
class Node:
    value: int
    next: Node | None = None


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)
    inner: Box[T] | None = None


class Movie(TypedDict, total=False):
    """A film."""

    title: Required[str]
    year: int


class Series(Movie):
    seasons: int
    over: NotRequired[bool]


@dataclass
class Checked:
    low: int
    high: int
    scale: InitVar[int] = 1
    constant: Final[int] = 3
    width: int = field(init=False)

    def __post_init__(self, scale):
        if self.low > self.high:
            raise ValueError("low is above high")
        self.width = (self.high - self.low) * scale


def schema(spec: Any) -> Any:
    return json.loads(to_json_schema(spec))


# -- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (str, {"type": "string"}),
        (None, {"type": "null"}),
        (type(None), {"type": "null"}),
        (Any, {}),
        (UserId, {"type": "integer"}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (typing.List[int], {"type": "array", "items": {"type": "integer"}}),  # noqa: UP006
        (typing.Dict, {"type": "object"}),  # noqa: UP006
        (typing.Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (dict[Color, Any], {"type": "object", "propertyNames": schema(Color)}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[str, int], {"anyOf": [{"type": "string"}, {"type": "integer"}]}),  # noqa: UP007
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a"], {"type": "string", "const": "a"}),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (Color, {"description": "What it looks like.", "type": "string", "enum": ["red", "blue"]}),
        (Level, {"type": "integer", "enum": [1, 2]}),
        (tuple[()], {"type": "array", "maxItems": 0}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (
            Annotated[int, Field(ge=0, lt=10, description="d")],
            {"type": "integer", "description": "d", "minimum": 0, "exclusiveMaximum": 10},
        ),
        ({"type": "string", "minLength": 2}, {"type": "string", "minLength": 2}),
        ('{"type": "string"}', {"type": "string"}),
        ("true", True),
    ],
)
def test_schemas_of_types(spec, expected):
    assert schema(spec) == expected


def test_schema_text_stays_as_it_is():
    text = '{ "type" : "object" }'
    assert to_json_schema(text) is text


def test_an_object_keeps_its_order_closes_and_carries_descriptions():
    written = schema(Person)
    assert list(written["properties"]) == ["name", "age", "home", "others", "mood"]
    assert written["required"] == ["name", "age", "home"]
    assert written["additionalProperties"] is False
    assert written["description"] == "Someone."
    assert written["properties"]["age"]["description"] == "in years, rounded down"
    assert written["properties"]["mood"]["description"] == "today"
    assert written["properties"]["home"] == {"$ref": "#/$defs/Address"}
    assert written["$defs"]["Address"]["description"] == "Where someone lives."
    assert written["$defs"]["Address"]["properties"]["code"]["description"] == "postal code"


def test_a_generated_docstring_is_no_description():
    assert "description" not in schema(Node)["$defs"]["Node"]


def test_recursive_types_refer_to_themselves():
    assert schema(Node) == {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
    }
    assert from_json(Node, '{"value": 1, "next": {"value": 2}}') == Node(1, Node(2))


def test_classes_of_one_name_do_not_collide():
    def other():
        @dataclass
        class Address:
            port: int

        return Address

    written = schema(tuple[Address, other()])
    assert [item["$ref"] for item in written["prefixItems"]] == ["#/$defs/Address", "#/$defs/Address_2"]
    assert list(written["$defs"]["Address_2"]["properties"]) == ["port"]


def test_generic_dataclasses_are_filled_in():
    assert from_json(Box[date], '{"content":"2024-02-29","more":["2024-03-01"]}') == Box(
        date(2024, 2, 29), [date(2024, 3, 1)]
    )
    assert from_json(Box[list[int]], '{"content":[1],"inner":{"content":[2]}}') == Box([1], [], Box([2]))
    with pytest.raises(InvalidOutput, match="/inner/content"):
        from_json(Box[int], '{"content":1,"inner":{"content":"x"}}')
    assert from_json(Box, '{"content":{"any":"thing"}}') == Box({"any": "thing"})


def test_typed_dicts_know_what_is_required():
    assert schema(Movie)["required"] == ["title"]
    assert schema(Series)["required"] == ["title", "seasons"]
    assert from_json(Movie, '{"title":"M"}') == {"title": "M"}
    with pytest.raises(InvalidOutput, match="title"):
        from_json(Movie, '{"year":1931}')


def test_dataclasses_of_every_shape():
    assert list(schema(Checked)["properties"]) == ["low", "high", "scale", "constant"]
    assert from_json(Checked, '{"low":1,"high":3,"scale":2}').width == 4
    with pytest.raises(InvalidOutput, match=r"At the root: Checked refuses these values: low is above high\."):
        from_json(Checked, '{"low":3,"high":1}')


def test_a_class_inside_a_function_may_refer_to_itself():
    @dataclass
    class Local:
        next: Local | None = None

    assert from_json(Local, '{"next":{}}') == Local(Local())


def test_an_annotation_that_cannot_be_found():
    @dataclass
    class Inner:
        x: int

    @dataclass
    class Outer:
        inner: Inner

    with pytest.raises(
        InvalidArgument, match="An annotation of Outer cannot be understood: name 'Inner' is not defined"
    ):
        to_json_schema(Outer)


class Pair(NamedTuple):
    a: int


class Odd(Enum):
    A = (1, 2)


class Empty(Enum):
    pass


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (set[int], "There is no JSON schema for set"),
        (Pair, "There is no JSON schema for Pair"),
        (object(), "There is no JSON schema for <object"),
        (bytes, "There is no JSON schema for bytes"),
        (3, "There is no JSON schema for 3"),
        (dict[int, str], "The keys of dict"),
        (Literal[b"x"], "A Literal has the value b'x', which JSON cannot write"),
        (Odd, r"Odd.A has the value \(1, 2\), which JSON cannot write"),
        (Empty, "The Enum Empty has no members"),
        (Annotated[str, Field(ge=3)], "The limit ge=3 has no meaning"),
        ({"x": {1, 2}}, "The schema cannot be written as JSON"),
        ({"x": float("nan")}, "The schema cannot be written as JSON"),
        ("{", "The schema is not JSON: .* at line 1, column 2"),
        ("{\n 3}", "at line 2, column 2"),
        ("[1]", "A JSON schema is an object or a boolean"),
        ("[" * 100_000, "The schema cannot be read"),
    ],
)
def test_what_has_no_schema_is_refused(spec, message):
    with pytest.raises(InvalidArgument, match=message):
        to_json_schema(spec)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_type_aliases():
    scope: dict[str, Any] = {}
    exec("type Tree = int | list[Tree]\ntype Pair[T] = tuple[T, T]", scope)  # older Pythons cannot parse it
    assert from_json(scope["Tree"], "[1,[2,[]]]") == [1, [2, []]]
    assert schema(scope["Tree"])["$ref"] == "#/$defs/Tree"
    assert from_json(scope["Pair"][int], "[1,2]") == (1, 2)


# -- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text", "value"),
    [
        (int, "1.0", 1),
        (int, "1e30", 10**30),
        (int, "-12.50e1", -125),
        (float, "1", 1.0),
        (Union[int, float], "2.5", 2.5),  # noqa: UP007
        (Union[date, str], '"2024-13-01"', "2024-13-01"),  # noqa: UP007
        (Literal[1, True], "true", True),
        (Literal["x", Color.RED], '"red"', Color.RED),
        (tuple[int, ...], "[1,2]", (1, 2)),
        (dict[Color, int], '{"red":1}', {Color.RED: 1}),
        (datetime, '"2016-12-31T23:59:60Z"', datetime(2017, 1, 1, tzinfo=timezone.utc)),
        (datetime, '"2016-12-31t23:59:01.1234567-01:30"', None),
        ({"type": "number"}, "1.5", 1.5),
        ("{}", '{"a":[1e2]}', {"a": [100.0]}),
        (Any, '{"a":[1e2]}', {"a": [100.0]}),
        (dict, '{"a":1.5}', {"a": 1.5}),
    ],
)
def test_values(spec, text, value):
    if value is None:
        zone = timezone(-timedelta(hours=1, minutes=30))
        value = datetime(2016, 12, 31, 23, 59, 1, 123456, tzinfo=zone)
    found = from_json(spec, text)
    assert found == value
    assert type(found) is type(value)


def test_plain_values_are_of_the_plain_types():
    value = from_json("{}", '{"a":[1.5]}')
    assert type(value["a"][0]) is float


@pytest.mark.parametrize(
    ("spec", "text", "pointer", "message"),
    [
        (int, "true", "", "true is not a whole number"),
        (int, "1.5", "", "1.5 is not a whole number"),
        (int, "1e9999999", "", "is not a whole number"),
        (int, "9" * 5000, "", "cannot be read"),
        (float, "1e999", "", "is not a finite number"),
        (float, "1" + "0" * 400, "", "is not a finite number"),
        (float, "NaN", "", "NaN is not JSON"),
        (float, "true", "", "true is not a finite number"),
        (str, "1", "", "1 is not a text"),
        (None, "0", "", "0 is not null"),
        (bool, "1", "", "1 is not true or false"),
        (date, '"2023-02-29"', "", "is not a date like 2024-01-31"),
        (date, '"20240131"', "", "is not a date like 2024-01-31"),
        (datetime, '"2024-01-31T12:00:00"', "", "is not a time like"),
        (datetime, '"9999-12-31T23:59:60Z"', "", "is not a time like"),
        (Color, '"green"', "", 'is not one of "red", "blue"'),
        (Literal[1], "true", "", "true is not one of 1"),
        (tuple[int, int], "[1]", "", r"\[1\] is not a list of 2"),
        (list[int], '{"a":1}', "", "is not a list"),
        (list[dict[str, int]], '[{"a/b~c":"x"}]', "/0/a~1b~0c", '"x" is not a whole number'),
        (Union[int, None], '"x"', "", '"x" is not a whole number or null'),  # noqa: UP007
        (Union[Person, Address], '{"street":1}', "/street", "1 is not a text"),  # noqa: UP007
        (Person, '{"name":"N","age":1}', "", "Person needs the member 'home'"),
        (Address, '{"street":"s","zip":1}', "", "Address has no member 'zip'"),
        (list[Annotated[int, Field(ge=0)]], "[1,-1]", "/1", "-1 breaks minimum 0"),
        (Annotated[str, Field(pattern="^a", max_length=2)], '"abc"', "", "breaks maxLength 2"),
        (Annotated[str, Field(pattern="^a")], '"b"', "", "breaks pattern '.a'"),
        (Annotated[float, Field(multiple_of=0.1)], "0.25", "", "breaks multipleOf 0.1"),
        (Annotated[list[int], Field(min_length=1)], "[]", "", "breaks minItems 1"),
        (int, "", "", "Expecting value at character 0"),
        (int, '{"a" 1}', "", "Expecting ':' delimiter at character 5, before '1}'"),
        (Any, "[" * 100_000, "", "nested too deeply"),
    ],
)
def test_what_does_not_fit_says_where_and_why(spec, text, pointer, message):
    with pytest.raises(InvalidOutput, match=message) as caught:
        from_json(spec, text)
    assert caught.value.pointer == pointer
    assert len(str(caught.value)) < 300


def test_multiples_are_exact():
    assert from_json(Annotated[float, Field(multiple_of=0.1)], "0.3") == 0.3


# -- words ----------------------------------------------------------------------------------------------------------


def test_a_description_for_the_prompt():
    assert describe(Person) == (
        "object: Someone.\n"
        "- name (text)\n"
        "- age (whole number): in years, rounded down\n"
        "- home (Address): Where someone lives.\n"
        "  - street (text)\n"
        "  - code (text, optional): postal code\n"
        "- others (list of Address, optional)\n"
        '- mood ("red" or "blue" or null, optional): today'
    )


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (int, "whole number"),
        (Annotated[int, Field(ge=1, le=5)], "whole number"),
        (dict[str, list[int]], "object of list of whole number by name"),
        (tuple[int, str], "list of whole number, text"),
        (Literal["x"], '"x"'),
        ({"type": ["string", "null"]}, "string or null"),
        ("true", "any JSON value"),
        ("false", "nothing"),
        ({}, "any JSON value"),
        (Node, "Node\n- value (whole number)\n- next (Node or null, optional)"),
    ],
)
def test_descriptions(spec, text):
    assert describe(spec) == text


def test_descriptions_name_limits():
    written = describe({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 5}}})
    assert written == "object\n- n (whole number, at least 1, at most 5, optional)"
