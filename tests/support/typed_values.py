"""Random types of the language's typed outputs, with values of them (hypothesis)."""

from __future__ import annotations

import functools
import operator
from dataclasses import field, fields, is_dataclass, make_dataclass
from datetime import date, datetime, timedelta, timezone
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

from hypothesis import strategies as st
from pydantic import BaseModel, create_model


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


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_names = st.from_regex(r"[a-z]{1,6}", fullmatch=True).map(lambda name: f"m_{name}")
_zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
_moments = st.datetimes(timezones=_zones)

_SCALARS = [
    Typed(None, st.none(), "null"),
    Typed(bool, st.booleans(), "boolean"),
    Typed(int, st.integers(), "number"),
    Typed(float, st.floats(allow_nan=False, allow_infinity=False), "number"),
    Typed(str, texts, "string"),
    Typed(date, st.dates(), "string"),
    Typed(datetime, _moments, "string"),
]


@st.composite
def _constants(draw):
    written = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
    if draw(st.booleans()):
        return Typed(Literal[tuple(written)], st.sampled_from(written), "string")
    members = Enum("Members", {f"M{i}": text for i, text in enumerate(written)})
    return Typed(members, st.sampled_from(list(members)), "string")


def _union(draw, depth, pool):
    parts = types(depth, pool).filter(lambda part: "/" not in part.kind)
    some = draw(st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: part.kind))
    spec = functools.reduce(operator.or_, (part.spec for part in some)) if len(some) > 1 else some[0].spec
    return Typed(spec, st.one_of([part.values for part in some]), "/".join(part.kind for part in some))


def _list(draw, depth, pool):
    part = draw(types(depth, pool))
    values = st.lists(part.values, max_size=3)
    if draw(st.booleans()):
        return Typed(list[part.spec], values, "array")
    return Typed(tuple[part.spec, ...], values.map(tuple), "array")


def _tuple(draw, depth, pool):
    some = draw(st.lists(types(depth, pool), max_size=3))
    return Typed(tuple[tuple(part.spec for part in some)], st.tuples(*(part.values for part in some)), "array")


def _dict(draw, depth, pool):
    part = draw(types(depth, pool))
    return Typed(dict[str, part.spec], st.dictionaries(texts, part.values, max_size=3), "object")


def _dataclass(draw, depth, pool):
    members = draw(st.dictionaries(_names, types(depth, pool), max_size=3))
    defaults = {name: draw(part.values) for name, part in members.items() if draw(st.booleans())}
    declared = [(name, part.spec) for name, part in members.items() if name not in defaults]
    declared += [
        (name, members[name].spec, field(default_factory=lambda value=value: value)) for name, value in defaults.items()
    ]
    cls = make_dataclass(f"Made{draw(st.integers(1, 3))}", declared)
    return Typed(cls, st.builds(cls, **{name: part.values for name, part in members.items()}), "object")


def _typed_dict(draw, depth, pool):
    members = draw(st.dictionaries(_names, types(depth, pool), max_size=3))
    total = draw(st.booleans())
    spec = TypedDict("Made", {name: part.spec for name, part in members.items()}, total=total)
    values = {name: part.values for name, part in members.items()}
    return Typed(spec, st.fixed_dictionaries({} if not total else values, optional={} if total else values), "object")


def _model(draw, _, pool):
    members = draw(st.dictionaries(_names, st.sampled_from(pool.scalars), max_size=3))
    model = create_model("Made", **{name: (part.spec, ...) for name, part in members.items()})
    return Typed(model, st.builds(model, **{name: part.values for name, part in members.items()}), "object")


EXACT = Pool(_SCALARS[:5], [_union, _list, _tuple, _dict, _dataclass, _typed_dict])  # what a validator checks wholly
ALL = Pool(_SCALARS, [*EXACT.containers, _model])


@st.composite
def types(draw, depth, pool):
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(pool.scalars) | _constants())
    return draw(st.sampled_from(pool.containers))(draw, depth - 1, pool)


def encoded(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {name: encoded(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value):
        return {f.name: encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return {key: encoded(item) for key, item in value.items()} if isinstance(value, dict) else value
