"""Random schemas against `jsonschema`: what it holds valid is a text of the expression, what it does not is none, no
walk through the automaton ends in an invalid instance. More on demand: scripts/schema_suites.py --fuzz N."""

from __future__ import annotations

import pytest

from tests.support.schema_fuzz import Tally, compare


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize(("draft", "schemas"), [(2020, 700), (2019, 100), (7, 150), (6, 100), (4, 150)])
def test_expression_agrees_with_jsonschema(draft, schemas, order):
    tally = Tally()
    for seed in range(schemas):
        compare(tally, seed, draft, order)
    assert tally.differences == []
    assert tally.refused < 0.3 * schemas
    assert tally.texts > 2 * schemas
