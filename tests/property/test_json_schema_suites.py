"""The labelled collections as gates: nothing wrong, nearly everything handled, and each refusal says why."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.schema_suites import BENCH, SUITE, bench_groups, run, suite_groups

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


@needs_suite
@pytest.mark.parametrize("whitespace", ["compact", "dense", "flexible"])
def test_suite_of_draft_2020_12(whitespace):
    found = verdicts(run(group, order="any", whitespace=whitespace) for group in suite_groups())
    assert found["pass"] >= 0.92 * found.total()


@needs_suite
def test_suite_in_the_order_of_the_schema():
    found = verdicts(run(group, reorders=True) for group in suite_groups())
    assert found["pass"] >= 0.92 * found.total()
