"""The labelled collections as gates: nothing wrong, nearly everything handled, and each refusal says why."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import jsonschema
import pytest

from lmprog_runtime.errors import RequestRefused
from tests.support.schema_fuzz import Sampler, is_comparable
from tests.support.schema_suites import BENCH, SUITE, bench_groups, run, suite_groups, writer_of

needs_bench = pytest.mark.skipif(not BENCH.exists(), reason=f"{BENCH} is not there")
needs_suite = pytest.mark.skipif(not SUITE.exists(), reason=f"{SUITE} is not there")


def verdicts(outcomes):
    """Counts by verdict, after a look that nothing is wrong and that refusals name something."""
    outcomes = list(outcomes)
    assert [(o.group.name, o.over, o.under) for o in outcomes if o.over or o.under] == []
    for outcome in outcomes:
        assert outcome.refusal is None or "#" in outcome.refusal or "The constraint" in outcome.refusal, outcome
    return Counter(outcome.verdict for outcome in outcomes)


@needs_bench
@pytest.mark.slow
def test_bench_in_the_order_of_the_schema():
    found = verdicts(run(group, reorders=True) for group in bench_groups())
    assert found["pass"] >= 0.97 * found.total()


@needs_bench
@pytest.mark.slow
def test_bench_in_any_order():
    found = verdicts(run(group, order="any") for group in bench_groups())
    assert found["pass"] >= 0.96 * found.total()


@needs_bench
@pytest.mark.slow
@pytest.mark.parametrize("order", ["schema", "any"])
def test_random_texts_of_bench_schemas_are_valid(order):
    random = Random(11)
    compared = 0
    for group in list(bench_groups())[order == "any" :: 2]:
        try:
            writer = writer_of(group.schema, order=order)
        except RequestRefused:
            continue
        validator = jsonschema.validators.validator_for(group.schema, jsonschema.Draft202012Validator)(group.schema)
        sampler = Sampler(writer.expressions, writer.root)
        texts = [sampler.text(random, 200) for _ in range(3)]
        for text in (text for text in texts if text is not None and is_comparable(text)):
            compared += 1
            assert validator.is_valid(json.loads(text)), (group.name, text)
    assert compared > 300


@needs_suite
@pytest.mark.parametrize("whitespace", ["compact", "dense", "flexible"])
def test_suite_of_draft_2020_12(whitespace):
    found = verdicts(run(group, order="any", whitespace=whitespace) for group in suite_groups())
    assert found["pass"] >= 0.92 * found.total()


@needs_suite
def test_suite_in_the_order_of_the_schema():
    found = verdicts(run(group, reorders=True) for group in suite_groups())
    assert found["pass"] >= 0.92 * found.total()
