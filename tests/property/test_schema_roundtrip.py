"""Random values of random types: JSON that is read is the value that was written, and it keeps to the schema."""

from __future__ import annotations

import functools
import itertools
import json
import operator
from dataclasses import field, fields, is_dataclass, make_dataclass
from datetime import date, datetime, timedelta, timezone
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from lmprog.errors import InvalidOutput
from lmprog.schema import describe, from_json, partial_json, to_json_schema


class Typed(NamedTuple):
    spec: Any
    values: st.SearchStrategy[Any]
    kind: str  # of its JSON: unions are unambiguous when these differ

    def __repr__(self) -> str:
        return f"Typed({self.spec})"


class Pool(NamedTuple):
    """What random types are made of."""

    scalars: list[Typed]
    containers: list[Any]


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_names = st.from_regex(r"[a-z]{1,6}", fullmatch=True).map(lambda name: f"m_{name}")
_zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_moments = st.datetimes(timezones=_zones)

_SCALARS = [
    Typed(None, st.none(), "null"),
    Typed(bool, st.booleans(), "boolean"),
    Typed(int, st.integers(), "number"),
    Typed(float, st.floats(allow_nan=False, allow_infinity=False), "number"),
    Typed(str, _texts, "string"),
    Typed(date, st.dates(), "string"),
    Typed(datetime, _moments, "string"),
]


@st.composite
def _constants(draw):
    texts = draw(st.lists(_texts, min_size=1, max_size=4, unique=True))
    if draw(st.booleans()):
        return Typed(Literal[tuple(texts)], st.sampled_from(texts), "string")
    members = Enum("Members", {f"M{i}": text for i, text in enumerate(texts)})
    return Typed(members, st.sampled_from(list(members)), "string")


def _union(draw, depth, pool):
    parts = _types(depth, pool).filter(lambda part: "/" not in part.kind)
    some = draw(st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: part.kind))
    spec = functools.reduce(operator.or_, (part.spec for part in some)) if len(some) > 1 else some[0].spec
    return Typed(spec, st.one_of([part.values for part in some]), "/".join(part.kind for part in some))


def _list(draw, depth, pool):
    part = draw(_types(depth, pool))
    values = st.lists(part.values, max_size=3)
    if draw(st.booleans()):
        return Typed(list[part.spec], values, "array")
    return Typed(tuple[part.spec, ...], values.map(tuple), "array")


def _tuple(draw, depth, pool):
    some = draw(st.lists(_types(depth, pool), max_size=3))
    return Typed(tuple[tuple(part.spec for part in some)], st.tuples(*(part.values for part in some)), "array")


def _dict(draw, depth, pool):
    part = draw(_types(depth, pool))
    return Typed(dict[str, part.spec], st.dictionaries(_texts, part.values, max_size=3), "object")


def _dataclass(draw, depth, pool):
    members = draw(st.dictionaries(_names, _types(depth, pool), max_size=3))
    defaults = {name: draw(part.values) for name, part in members.items() if draw(st.booleans())}
    declared = [(name, part.spec) for name, part in members.items() if name not in defaults]
    declared += [
        (name, members[name].spec, field(default_factory=lambda value=value: value)) for name, value in defaults.items()
    ]
    cls = make_dataclass(f"Made{draw(st.integers(1, 3))}", declared)
    return Typed(cls, st.builds(cls, **{name: part.values for name, part in members.items()}), "object")


def _typed_dict(draw, depth, pool):
    members = draw(st.dictionaries(_names, _types(depth, pool), max_size=3))
    total = draw(st.booleans())
    spec = TypedDict("Made", {name: part.spec for name, part in members.items()}, total=total)
    values = {name: part.values for name, part in members.items()}
    return Typed(spec, st.fixed_dictionaries({} if not total else values, optional={} if total else values), "object")


def _model(draw, _, pool):
    members = draw(st.dictionaries(_names, st.sampled_from(pool.scalars), max_size=3))
    model = create_model("Made", **{name: (part.spec, ...) for name, part in members.items()})
    return Typed(model, st.builds(model, **{name: part.values for name, part in members.items()}), "object")


_EXACT = Pool(_SCALARS[:5], [_union, _list, _tuple, _dict, _dataclass, _typed_dict])  # what a validator checks wholly
_ALL = Pool(_SCALARS, [*_EXACT.containers, _model])


@st.composite
def _types(draw, depth, pool):
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(pool.scalars) | _constants())
    return draw(st.sampled_from(pool.containers))(draw, depth - 1, pool)


def _encoded(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: _encoded(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value):
        return {f.name: _encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return {key: _encoded(item) for key, item in value.items()} if isinstance(value, dict) else value


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_what_is_read_is_what_was_written(data):
    typed = data.draw(_types(3, _ALL))
    value = data.draw(typed.values)
    text = json.dumps(_encoded(value))
    schema = json.loads(to_json_schema(typed.spec))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
    found = from_json(typed.spec, text)
    assert found == value
    assert type(found) is type(value) or isinstance(value, float)
    assert describe(typed.spec)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(_texts, parts, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_read_or_refused_exactly_as_the_schema_says(data):
    """Any JSON at all: `from_json` reads it when a validator accepts it, and refuses it when not."""
    typed = data.draw(_types(2, _EXACT))
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
