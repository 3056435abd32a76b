"""Decode steps made from the one before: the fake model checks every key that a row sees."""

from __future__ import annotations

import random

import pytest

from lmprog_runtime.cache import CacheConfig, CacheManager
from lmprog_runtime.scheduler import CascadeRule, Scheduler, SchedulerConfig, Sequence
from tests.support.fake_executor import Driver, verify

RULES = pytest.mark.parametrize("rule", [None, CascadeRule()], ids=["apart", "together"])


def make(rule: CascadeRule | None, num_slots: int = 4096, growth_run: int = 3) -> Driver:
    config = SchedulerConfig(context_length=1024, step_tokens=64, cascade=rule, growth_run=growth_run)
    return Driver(Scheduler(config, CacheManager(CacheConfig(num_slots=num_slots, debug_owners=True))))


def jobs(*counts: int) -> list[Sequence]:
    """With prompts of several lengths, each of which shares a beginning with some others."""
    tokens = random.Random(1).choices(range(1000), k=60)
    prompts = [[*tokens[: 7 * (number % 3 + 1)], number, *tokens[:number]] for number in range(len(counts))]
    return [Sequence(list(prompt), len(prompt), ("m",), count) for prompt, count in zip(prompts, counts, strict=True)]


@RULES
def test_a_long_run_of_decodes_shares_its_arrays(rule: CascadeRule | None) -> None:
    driver, sequences = make(rule), jobs(*[200] * 5)
    driver.submit(*sequences)
    batches = []
    while (step := driver.step()) is not None:
        batches.append(step.batch)
    assert len({id(batch) for batch in batches}) < 10 < 190 < len(batches)
    for sequence in sequences:
        verify(driver, sequence)


@RULES
def test_some_end_earlier_come_later_or_are_aborted(rule: CascadeRule | None) -> None:
    driver, (late, dropped, *others) = make(rule), jobs(30, 90, 5, 17, 40, 41)
    driver.submit(dropped, *others)
    for _ in range(12):
        driver.step()
    driver.submit(late)
    for _ in range(12):
        driver.step()
    driver.scheduler.abort(dropped)
    driver.run()
    for sequence in (late, dropped, *others):
        verify(driver, sequence)


@RULES
def test_slots_taken_back_or_lost_to_others_are_not_remembered(rule: CascadeRule | None) -> None:
    driver, sequences = make(rule, num_slots=160, growth_run=40), jobs(*[50] * 6)
    driver.submit(*sequences)
    driver.run()
    assert driver.scheduler.counters.preemptions > 0
    for sequence in sequences:
        verify(driver, sequence)
