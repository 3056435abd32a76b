"""JSON that is still being written."""

from __future__ import annotations

import pytest

from lmprog.errors import InvalidOutput
from lmprog.schema import partial_json


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("", None),
        ("  ", None),
        ("tru", None),
        ("-", None),
        ("12", 12),  # JSON as it stands
        ('"ab', "ab"),
        ('"ab\\', "ab"),
        ('"ab\\\\', "ab\\"),
        ('"ab\\u00', "ab"),
        ('"ab\\\\\\u00', "ab\\"),
        ('"\\ud83d', ""),
        ('"\\ud83d\\ude', ""),
        ('"\\\\ud83d', "\\ud83d"),
        ('"\\ud83d\\ude00', "😀"),
        ("{", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a" :', {}),
        ('{"a":1', {}),
        ('{"a":1 ', {"a": 1}),
        ('{"a":"x', {"a": "x"}),
        ('{"a":1,"b":{"c":[', {"a": 1, "b": {"c": []}}),
        ("[1.5,2", [1.5]),
        ("[null", []),
        ("[[],[", [[], []]),
        ("[]\n", []),
    ],
)
def test_what_is_certain(text, known):
    assert partial_json(text) == known


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[,",
        "[1,]",
        "{1",
        '{"a"1',
        '{"a":}',
        "{]",
        "[}",
        "[] []",
        '{"a",',
        "[1 2",
        "01,",
        "}",
        ":",
        "[01",
        "[1.e",
        "[tree",
    ],
)
def test_what_is_not_the_beginning_of_json(text):
    with pytest.raises(InvalidOutput, match="not JSON"):
        partial_json(text)
