"""20,000 random schemas, each with instances, against `jsonschema`: what it holds valid is a text of the expression,
what it does not is none, no walk through the automaton ends in an invalid instance. Those that are refused come on top.
More on demand: scripts/schema_suites.py --fuzz N."""

from __future__ import annotations

import pytest

from lmprog_runtime.constraint.json_schema import Order
from tests.support.schema_fuzz import Tally, compare

SCHEMAS = {2020: 13_000, 2019: 3_000, 7: 5_000, 6: 2_500, 4: 3_500}
"""By draft. One in four is refused, and does not count."""

ORDERS: tuple[Order, Order] = ("schema", "any")
SIZE = 1_250
CHUNKS = [
    (draft, range(start, min(start + SIZE, count)))
    for draft, count in SCHEMAS.items()
    for start in range(0, count, SIZE)
]


@pytest.mark.parametrize(("draft", "seeds"), CHUNKS, ids=str)
def test_expression_agrees_with_jsonschema(draft: int, seeds: range) -> None:
    """Even seeds are compiled for members in the order of the schema, odd ones for any order."""
    tally = Tally()
    for seed in seeds:
        compare(tally, seed, draft, ORDERS[seed % 2])
    assert tally.differences == []
    assert tally.refused < 0.3 * len(seeds)
    assert tally.texts > 2 * len(seeds)
