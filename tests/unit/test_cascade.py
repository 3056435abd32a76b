"""Shared parts of a step: who is grouped, in which order, and that sharing changes no output."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from lmprog_runtime.cache import CacheConfig, CacheManager
from lmprog_runtime.model.executor import Executor
from lmprog_runtime.model.model_spec import make_spec
from lmprog_runtime.runtime import cascade_rule
from lmprog_runtime.scheduler import CascadeRule, ScheduledStep, Scheduler, SchedulerConfig, Sequence, TokenTree
from lmprog_runtime.scheduler.cascade import SharedPart, shared_parts
from lmprog_runtime.step import ALL_KEYS
from tests.support.fake_executor import Driver, verify


def make(rule: CascadeRule | None, step_tokens: int = 400) -> Driver:
    config = SchedulerConfig(context_length=4096, step_tokens=step_tokens, max_running=32, cascade=rule)
    return Driver(Scheduler(config, CacheManager(CacheConfig(num_slots=4096, debug_owners=True))))


def job(tokens: list[int], new: int = 3, tree: TokenTree | None = None) -> Sequence:
    return Sequence(list(tokens), len(tokens), ("m",), new, tree=tree)


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


def shared_items(step: ScheduledStep) -> list[list[int]]:
    rows_of_chunks = [chunk.end - chunk.start for chunk in step.chunks]
    return [item for item in step.batch.plan.items.tolist() if item[1] > max(rows_of_chunks)]


EVERY = CascadeRule()


def test_nested_shared_parts_are_found_and_decoded_together() -> None:
    driver = make(EVERY)
    system = prompt(40, seed=0)
    families = [system + prompt(20, seed=family) for family in (1, 2)]
    jobs = [job(families[number % 2] + prompt(5, seed=10 + number), new=2) for number in range(6)]
    driver.submit(*jobs)
    driver.step()
    step = driver.step()  # the decodes
    assert step is not None
    items = step.batch.plan.items.tolist()
    assert [(row, rows, keys, position) for row, rows, _, keys, _, position in items] == [
        (0, 6, 40, 0),
        (3, 3, 20, 40),
        (0, 3, 20, 40),
        *((row, 1, 6, 60) for row in range(6)),
    ]
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)


def test_the_one_that_computes_a_shared_part_goes_first_in_the_same_step() -> None:
    driver = make(EVERY)
    trunk = prompt(60, seed=0)
    jobs = [job(trunk), job([*trunk, 1, 2, 3]), job([*trunk[:30], 5]), job([*trunk[:45], 6]), job(trunk[:30])]
    driver.submit(*jobs)
    step = driver.step()
    assert step is not None
    assert next(chunk.end - chunk.start for chunk in step.chunks) == 60
    causal = [item for item in step.batch.plan.items.tolist() if item[4] != ALL_KEYS and item[1] > 60]
    assert causal  # rows of the leader and of its followers in one item
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)


@pytest.mark.parametrize("alignment", [1, 7, 32])
@pytest.mark.parametrize("step_tokens", [32, 50, 400])
def test_outputs_do_not_depend_on_grouping(alignment: int, step_tokens: int) -> None:
    rng = random.Random(alignment * step_tokens)
    driver = make(CascadeRule(min_saved=3, alignment=alignment), step_tokens)
    trunks = [prompt(70, seed=0), prompt(30, seed=0) + prompt(40, seed=1)]
    jobs = [job(rng.choice(trunks)[: rng.randrange(5, 70)] + prompt(rng.randrange(1, 6), seed=n)) for n in range(30)]
    tree = TokenTree((5, 6, 7, 8, 9), (-1, 0, 1, 0, -1))
    jobs += [job(trunks[0][: rng.randrange(20, 70)], 0, tree) for _ in range(4)]
    for sequence in jobs:
        driver.submit(sequence)
        if rng.random() < 0.4:
            driver.step()
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)


def test_rows_computed_apart_are_joined_once_the_tree_has_made_them_one() -> None:
    driver = make(EVERY)
    text = prompt(40, seed=0)
    jobs = [Sequence(list(text), 40, ("m",), 4, logits_from=0) for _ in range(2)]  # all positions computed by both
    driver.submit(*jobs)
    first = driver.step()
    assert first is not None
    assert len(first.batch.tokens) == 80
    second = driver.step()
    assert second is not None
    assert second.batch.plan.items[0].tolist() == [0, 2, 0, 40, ALL_KEYS, 0]
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)


def test_the_rule_decides() -> None:
    rule = CascadeRule(min_saved=5120, alignment=128)
    ten, eleven = [1] * 10, [1] * 11
    assert shared_parts(ten, [639] * 9, rule) == []  # 512 keys, nine times
    assert shared_parts(ten, [640] * 9, rule) == [SharedPart(0, 10, 0, 640)]
    assert shared_parts(eleven, [639] * 10, rule) == [SharedPart(0, 11, 0, 512)]
    assert shared_parts(eleven, [511] * 10, rule) == []
    nested = shared_parts([1] * 24, [1300] * 11 + [100] + [1300] * 11, rule)
    assert nested == [
        SharedPart(12, 24, 0, 1280),
        SharedPart(0, 12, 0, 1280),
    ]  # the short outer part is fused into both
    deep = shared_parts([1] * 24, [1300] * 11 + [600] + [1300] * 11, rule)
    assert deep == [SharedPart(0, 24, 0, 512), SharedPart(12, 24, 512, 1280), SharedPart(0, 12, 512, 1280)]
    assert shared_parts([], [], rule) == []


def test_plan_without_a_rule_is_one_item_per_sequence() -> None:
    driver = make(None)
    jobs = [job([*prompt(30, seed=0), number]) for number in range(4)]
    driver.submit(*jobs)
    step = driver.step()
    assert step is not None
    assert len(step.batch.plan.items) == 4
    assert np.array_equal(step.batch.plan.items[:, 5], np.zeros(4))
    decodes = driver.step()
    assert decodes is not None
    assert decodes.batch.plan.items[:, 4].tolist() == [ALL_KEYS] * 4


def test_a_part_pays_when_it_saves_enough_reading() -> None:
    rule = CascadeRule(min_saved=2048)
    assert [rule.pays(chunks, chunks, 1024) for chunks in (1, 2, 3)] == [False, False, True]
    assert [rule.pays(2, 2, keys) for keys in (2047, 2048)] == [False, True]
    assert not EVERY.pays(2, 2, 0)


def test_a_part_pays_when_reading_is_what_takes_time() -> None:
    """With 12 states in a chunk at most, and 40 keys for each of them; three heads are three states of a row."""
    rule = CascadeRule(max_states=12, keys_per_state=40, query_group=3)
    assert [rule.pays(4, 4, keys) for keys in (119, 120)] == [False, True]
    assert [rule.pays(4, 16, keys) for keys in (479, 480)] == [False, True]
    assert [rule.takes(rows) for rows in (1, 4, 5)] == [True, True, False]
    many_heads = CascadeRule(max_states=12, query_group=16)
    assert [many_heads.takes(rows) for rows in (1, 2)] == [True, False]


def test_a_chunk_of_many_rows_attends_alone_and_the_others_share() -> None:
    driver = make(CascadeRule(max_states=4))
    trunk = prompt(50, seed=0)
    driver.submit(*(decodes := [job([*trunk, number], new=4) for number in range(4)]))
    driver.step()
    driver.submit(extend := job(trunk + prompt(30, seed=1)))
    step = driver.step()
    assert step is not None
    assert [(row, rows, keys) for row, rows, _, keys, *_ in step.batch.plan.items.tolist()] == [
        (0, 4, 50),
        *((row, 1, 2) for row in range(4)),
        (4, 30, 80),
    ]
    driver.run()
    for sequence in [*decodes, extend]:
        verify(driver, sequence)


def test_few_rows_share_what_a_chunk_of_many_computes_in_the_same_step() -> None:
    driver = make(CascadeRule(max_states=4))
    trunk = prompt(60, seed=0)
    leader, *followers = jobs = [job(trunk), *(job([*trunk, number]) for number in range(3))]
    driver.submit(*jobs)
    step = driver.step()
    assert step is not None
    assert [chunk.sequence for chunk in step.chunks] == [*followers, leader]
    assert step.batch.plan.items[0, :4].tolist() == [0, 3, 0, 60]
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)


def test_decodes_are_grouped_by_the_cpu_executor_and_long_extends_by_torch() -> None:
    config = {"model_type": "llama", "vocab_size": 64, "hidden_size": 576, "intermediate_size": 64}
    spec = make_spec({**config, "num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 3})
    native, torch, unknown = (
        cascade_rule(cast(Executor, SimpleNamespace(name=name, spec=known)))
        for name, known in (("cpu", spec), ("torch", spec), ("hf", None))
    )
    assert unknown is None
    assert native is not None
    assert torch is not None
    decodes, few_shot = (16, 16, 256), (12, 12 * 40, 1024)
    assert (native.pays(*decodes), native.takes(40)) == (True, False)
    assert (torch.pays(*decodes), torch.takes(40) and torch.pays(*few_shot)) == (False, True)
