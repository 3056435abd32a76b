"""The schemas of types, as the constraint compiler enforces them: any text it lets through is a value."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog.schema import from_json, to_json_schema
from tests.support.constraints import random_text
from tests.support.schema_suites import writer_of
from tests.support.typed_values import ALL, types


@settings(deadline=None, max_examples=25)
@given(types(2, ALL), st.integers(0, 2**32))
def test_whatever_is_let_through_is_a_value(typed, seed):
    writer, rng = writer_of(to_json_schema(typed.spec)), random.Random(seed)
    found = [random_text(writer.expressions.arena, writer.root, rng, most=200) for _ in range(4)]
    for text in filter(None, found):
        from_json(typed.spec, text.decode())
