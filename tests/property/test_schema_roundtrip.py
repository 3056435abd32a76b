"""Random values of random types: JSON that is read is the value that was written, and it keeps to the schema."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog.errors import InvalidOutput
from lmprog.schema import describe, from_json, partial_json, to_json_schema
from tests.support.typed_values import ALL, EXACT, encoded, texts, types


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_what_is_read_is_what_was_written(data):
    typed = data.draw(types(3, ALL))
    value = data.draw(typed.values)
    text = json.dumps(encoded(value))
    schema = json.loads(to_json_schema(typed.spec))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    found = from_json(typed.spec, text)
    assert found == value
    assert type(found) is type(value) or isinstance(value, float)
    assert describe(typed.spec)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(texts, parts, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_read_or_refused_exactly_as_the_schema_says(data):
    """Any JSON at all: `from_json` reads it when a validator accepts it, and refuses it when not."""
    typed = data.draw(types(2, EXACT))
    value = data.draw(_json)
    is_valid = jsonschema.Draft202012Validator(json.loads(to_json_schema(typed.spec))).is_valid(value)
    if is_valid:
        from_json(typed.spec, json.dumps(value))
    else:
        with pytest.raises(InvalidOutput):
            from_json(typed.spec, json.dumps(value))


def _is_part_of(earlier: Any, later: Any) -> bool:
    if isinstance(earlier, str):
        return isinstance(later, str) and later.startswith(earlier)
    if isinstance(earlier, list):
        pairs = zip(earlier, later, strict=False)
        return isinstance(later, list) and len(earlier) <= len(later) and all(_is_part_of(a, b) for a, b in pairs)
    if isinstance(earlier, dict):
        return isinstance(later, dict) and all(k in later and _is_part_of(v, later[k]) for k, v in earlier.items())
    return bool(earlier == later)


@settings(deadline=None, max_examples=100)
@given(st.lists(_json, max_size=3), st.booleans(), st.sampled_from([None, 1]))
def test_cuts_only_grow(value, is_ascii, indent):
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    known = [partial_json(text[:end]) for end in range(1, len(text) + 1)]
    assert known[-1] == value
    for earlier, later in itertools.pairwise(known):
        assert _is_part_of(earlier, later)
