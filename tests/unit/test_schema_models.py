"""pydantic models as JSON schemas, and JSON as their instances."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from lmprog.errors import InvalidArgument, InvalidOutput
from lmprog.schema import from_json, to_json_schema


def schema(spec: Any) -> Any:
    return json.loads(to_json_schema(spec))


class Color(Enum):
    RED = "red"


class Tag(BaseModel):
    label: str


class Article(BaseModel):
    """A text."""

    title: str = Field(alias="headline", description="short", max_length=20)
    tags: list[Tag] = []
    replies: list[Article] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    x: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    scores: dict[str, int] = {}


class Numbers(RootModel[list[int]]):
    pass


@pydantic_dataclass
class Point:
    x: int
    y: int = 0


def test_models_are_closed_unless_they_keep_what_they_do_not_know():
    assert schema(Tag)["additionalProperties"] is False
    assert schema(Open)["additionalProperties"] is True
    assert schema(Owner)["properties"]["scores"]["additionalProperties"] == {"type": "integer"}
    assert schema(Numbers) == {"items": {"type": "integer"}, "title": "Numbers", "type": "array"}


def test_model_schemas_are_pydantics_own_otherwise():
    written = schema(Article)["$defs"]["Article"]
    assert written["description"] == "A text."
    assert list(written["properties"]) == ["headline", "tags", "replies"]
    assert written["properties"]["headline"]["maxLength"] == 20
    assert schema(Owner)["properties"]["pet"] == {
        "anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "title": "Pet",
    }


def test_models_read_their_values():
    article = from_json(Article, '{"headline":"T","replies":[{"headline":"R"}]}')
    assert article.replies[0].title == "R"
    assert from_json(list[Tag], '[{"label":"a"}]') == [Tag(label="a")]
    assert from_json(Owner, '{"pet":{"kind":"dog"}}').pet == Dog(kind="dog")
    assert from_json(Point, '{"x":1}') == Point(1)
    assert from_json(Numbers, "[1, 2.0, 2e187]").root == [1, 2, 2 * 10**187]


def test_model_errors_name_the_place():
    with pytest.raises(InvalidOutput, match="At /1/replies/0/headline: String should have at most 20") as caught:
        from_json(
            list[Article], json.dumps([{"headline": "a"}, {"headline": "b", "replies": [{"headline": "x" * 21}]}])
        )
    assert caught.value.__cause__ is not None


def test_definitions_of_models_inside_other_types_do_not_collide():
    @dataclass
    class Tag:
        number: int

    written = schema(tuple[Tag, Article])
    tags = written["$defs"]["Article"]["properties"]["tags"]["items"]["$ref"]
    assert tags == "#/$defs/Tag_2"
    assert list(written["$defs"]["Tag_2"]["properties"]) == ["label"]
    assert written["$defs"]["Article"]["properties"]["replies"]["items"] == {"$ref": "#/$defs/Article"}


def test_a_model_without_a_schema_is_refused():
    class Strange(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        x: Color
        y: type(sys)

    with pytest.raises(InvalidArgument, match="Strange has no JSON schema"):
        to_json_schema(Strange)
