"""A fuzzer over everything that can happen to requests: exact outputs, balanced books, no request left behind.

LMPROG_FUZZ_OPERATIONS=1000000 makes it longer.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.support.scheduler_model import OPERATIONS, SchedulerModel

SEEDS = st.integers(0, 2**32 - 1)
OPERATION_COUNT = int(os.environ.get("LMPROG_FUZZ_OPERATIONS", "100000"))
ROUNDS = 20


class SchedulerMachine(RuleBasedStateMachine):
    """Small runs that hypothesis shrinks."""

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        self.model = SchedulerModel(seed)

    @rule(operation=st.sampled_from(list(OPERATIONS)), seed=SEEDS)
    def operate(self, operation, seed: int) -> None:
        self.model.do(operation, seed)

    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        self.model.do(SchedulerModel.step, seed)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.model.close()


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSchedulerMachine = SchedulerMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("round_", range(ROUNDS))
def test_long_random_runs(round_: int) -> None:
    random = Random(round_)
    operations, weights = list(OPERATIONS), list(OPERATIONS.values())
    left = OPERATION_COUNT // ROUNDS
    model = SchedulerModel(round_)
    while left:
        if model.operations >= 1000:
            model.close()
            model = SchedulerModel(random.randrange(2**32))
        [operation] = random.choices(operations, weights)
        model.do(operation, random.randrange(2**32))
        left -= 1
    model.close()
