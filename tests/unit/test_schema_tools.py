"""Functions as tools: what the schema of a call takes from the signature and the docstring."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from lmprog.errors import InvalidArgument, InvalidOutput
from lmprog.schema import call_from_json, calls_schema, tool_schema


@dataclass
class Place:
    latitude: float
    longitude: float


def weather(place: Place, days: Annotated[int, "how many"] = 1, *, unit: str = "C") -> str:
    """The weather at a place.

    Only for the next week.

    Args:
        place: where (on Earth)
        unit (str): C or F,
            nothing else

    Returns:
        unit: a text
    """
    return f"{place} {days} {unit}"


def test_a_function_as_a_tool():
    written = tool_schema(weather)
    assert written["name"] == "weather"
    assert written["description"] == "The weather at a place.\n\nOnly for the next week."
    parameters = written["parameters"]
    assert list(parameters["properties"]) == ["place", "days", "unit"]
    assert parameters["required"] == ["place"]
    assert parameters["properties"]["place"] == {"$ref": "#/$defs/Place", "description": "where (on Earth)"}
    assert parameters["properties"]["days"]["description"] == "how many"
    assert parameters["properties"]["unit"]["description"] == "C or F, nothing else"


def test_sphinx_style():
    def find(query: str, limit: int = 3) -> None:
        """Find.

        :param query: what to look for
        :param int limit: how many
            at most
        :returns: nothing
        """

    properties = tool_schema(find)["parameters"]["properties"]
    assert tool_schema(find)["description"] == "Find."
    assert properties["query"]["description"] == "what to look for"
    assert properties["limit"]["description"] == "how many at most"


def test_a_method_and_a_function_without_parameters():
    class Clock:
        def now(self) -> str:
            return "12:00"

    assert tool_schema(Clock().now)["parameters"] == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def test_parameters_that_json_cannot_give():
    def starred(*args: int) -> None: ...

    def open_ended(**kwargs: int) -> None: ...

    def positional(x: int, /) -> None: ...

    def bare(x) -> None: ...

    for function, shown in ((starred, r"\*args"), (open_ended, r"\*\*kwargs"), (positional, "x")):
        with pytest.raises(InvalidArgument, match=f"{function.__name__} takes {shown}.* cannot be given by name"):
            tool_schema(function)
    with pytest.raises(InvalidArgument, match="The parameter 'x' of bare has no type; annotate it"):
        tool_schema(bare)


def test_a_call_of_one_of_several():
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    schema = json.loads(calls_schema([weather, add]))
    assert schema["anyOf"] == [{"$ref": "#/$defs/weather_call"}, {"$ref": "#/$defs/add_call"}]
    call = schema["$defs"]["add_call"]
    assert call["description"] == "Adds."
    assert call["properties"]["name"] == {"type": "string", "const": "add"}
    assert call["required"] == ["name", "arguments"]
    text = '{"name":"weather","arguments":{"place":{"latitude":1,"longitude":2}}}'
    assert call_from_json([weather, add], text) == (weather, {"place": Place(1, 2)})
    assert call_from_json([add], '{"name":"add","arguments":{"a":2}}') == (add, {"a": 2})
    with pytest.raises(InvalidOutput, match="At /arguments/a: true is not a whole number"):
        call_from_json([weather, add], '{"name":"add","arguments":{"a":true}}')
