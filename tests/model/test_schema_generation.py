"""What the default model writes under real schemas, at a high temperature: valid when complete, a beginning when cut.
scripts/schema_generation.py does the same over 300 schemas."""

from __future__ import annotations

from collections import Counter

import pytest

from lmprog_runtime.request import SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from scripts.schema_generation import BENCH, WRONG, generate, load, spread
from tests.support.real_model import MODEL

pytestmark = pytest.mark.model

SCHEMAS = 25


@pytest.mark.skipif(not BENCH.exists(), reason="JSONSchemaBench does not lie beside the checkout")
def test_outputs_satisfy_their_schema_and_none_ends_dead() -> None:
    runtime = LocalRuntime.start(model=MODEL, max_total_tokens=16384)
    params = SamplingParams(max_tokens=96, temperature=1.5, seed=3)
    try:
        results = list(generate(runtime, spread(load(), SCHEMAS), params))
    finally:
        runtime.close()
    assert [result for result in results if result.verdict in WRONG] == []
    counts = Counter(result.verdict for result in results)
    assert counts["valid"] >= SCHEMAS // 4
    assert counts["refused"] <= 2
