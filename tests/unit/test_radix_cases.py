"""The radix and runtime cases that users of such systems have reported (R01, R03, R04, R06, R07, R08, R10, F03, F05),
as far as they need no real model: the arithmetic model shows any wrong key, slot or position. R04's ten thousand
operations are in tests/property/test_cache_model.py.
"""

from __future__ import annotations

import random
import time
from itertools import product

import numpy as np
import pytest

from lmprog_runtime.cache import CacheConfig, CacheCorrupt, CacheManager
from lmprog_runtime.cache import keys as token_keys
from lmprog_runtime.errors import PromptTooLong
from lmprog_runtime.scheduler import Scheduler, SchedulerConfig, Sequence, State
from tests.support.fake_executor import Driver, reference_outputs, verify


def make(num_slots: int = 512, *, page_size: int = 1, **config: object) -> Driver:
    defaults: dict[str, object] = {"context_length": 8192, "step_tokens": 64, "max_running": 16, "decode_reserve": 2}
    cache = CacheManager(CacheConfig(num_slots=num_slots, page_size=page_size, debug_owners=True))
    return Driver(Scheduler(SchedulerConfig(**{**defaults, **config}), cache))  # type: ignore[arg-type]


def job(tokens: list[int], new: int = 4, **fields: object) -> Sequence:
    space = fields.pop("namespace", ("model", None, None))
    return Sequence(list(tokens), len(tokens), space, new, **fields)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


def run(driver: Driver, *sequences: Sequence) -> list[list[int]]:
    driver.submit(*sequences)
    driver.run()
    for sequence in sequences:
        verify(driver, sequence)
    return [sequence.token_ids[sequence.prompt_length :] for sequence in sequences]


@pytest.mark.parametrize("page_size", [1, 4])
def test_case_r01_cold_equals_warm_in_every_way(page_size: int) -> None:
    driver = make(page_size=page_size)
    for seed in range(10):
        text = prompt(40 + seed, seed)
        cold = run(driver, job(text))
        warm = job(text)
        assert run(driver, warm) == cold
        assert warm.cached_tokens >= len(text) - page_size
        run(driver, job(text[:20] + prompt(20, seed=100 + seed)))
        assert run(driver, job(text)) == cold
        forced = job(text, use_cache=False)
        assert run(driver, forced) == cold
        assert forced.cached_tokens == 0
        driver.scheduler.cache.flush()
        flushed = job(text)
        assert run(driver, flushed) == cold
        assert flushed.cached_tokens == 0
    counters = driver.scheduler.cache.counters
    assert 0 < counters.hit < counters.queried


def test_case_r01_no_reuse_at_all_when_switched_off() -> None:
    cache = CacheManager(CacheConfig(num_slots=512, enabled=False))
    driver = Driver(Scheduler(SchedulerConfig(context_length=8192), cache))
    first, second = job(prompt(50)), job(prompt(50))
    assert run(driver, first) == run(driver, second)
    assert (second.cached_tokens, cache.counters.hit) == (0, 0)


@pytest.mark.parametrize("back", [0, 1, 60])
def test_case_r03_prompt_logits_after_a_hit_are_complete_and_equal_to_cold(back: int) -> None:
    text = prompt(60)
    warmed = make()
    run(warmed, job(text))
    sequence = job(text, logits_from=max(0, 59 - back))
    run(warmed, sequence)
    given = warmed.outputs[sequence]
    start = max(0, 59 - back)
    assert [given[position] for position in range(start, 60)] == reference_outputs(text)[start:]
    assert sequence.cached_tokens == start  # only what is asked for is computed again


def test_case_r04_a_violation_raises_with_the_tree() -> None:
    driver = make()
    run(driver, job(prompt(20)))
    driver.scheduler.cache.slots.free_count -= 1
    with pytest.raises(CacheCorrupt, match=r"(?s)free is kept as \d+ and counted as \d+.*namespace"):
        driver.scheduler.cache.check()


def test_case_r06_eviction_takes_the_least_recent_leaf_and_no_more_than_asked() -> None:
    driver = make(num_slots=64)
    a, b = prompt(20, seed=1), prompt(20, seed=2)
    run(driver, job(a, new=1))
    run(driver, job(b, new=1))
    run(driver, job([*a[:10], 7], new=1))  # refreshes ten tokens of A
    tail, other, head = 10, 20, 11
    cache = driver.scheduler.cache
    assert cache.tree.evictable == tail + other + head
    run(driver, job(prompt(28, seed=3), new=1))  # needs 5 more slots than are free
    assert cache.counters.evicted == 28 - (64 - 41)
    assert cached(cache, a) == 20 - 5  # from the tail of the part of A that was not refreshed
    assert cached(cache, b) == 20


def cached(cache: CacheManager, tokens: list[int]) -> int:
    match = cache.match(("model", None, None), token_keys.encode(tokens), len(tokens))
    return 0 if match is None else match.length


def test_case_r07_what_can_never_fit_is_refused_and_others_go_on() -> None:
    driver = make(num_slots=256)
    with pytest.raises(PromptTooLong, match=r"300 tokens and the pool holds 256"):
        driver.submit(job(prompt(300)))
    with pytest.raises(PromptTooLong, match=r"256"):  # nothing of a group is added when one member cannot fit
        driver.submit(job(prompt(10)), job(prompt(300)))
    assert not driver.scheduler.has_work()
    tight, small = job(prompt(250), new=50), job(prompt(20, seed=1))
    driver.submit(tight)
    driver.submit(small)
    driver.run()
    assert len(tight.token_ids) == tight.token_limit == 257
    fork = [job([*prompt(200, seed=2), branch], new=8) for branch in range(50)]
    run(driver, *fork)
    computed = driver.executor.computed
    assert computed < 250 + 20 + 200 * 3 + 50 * 20  # the prefix was not computed for every branch


ADAPTERS = (None, "", "b", "a:b")
SALTS = (None, "", "a", "a:b")


def test_case_r08_only_equal_keys_share() -> None:
    driver = make(num_slots=2048)
    text = prompt(30)
    spaces = [("model", adapter, salt) for adapter, salt in product(ADAPTERS, SALTS)]
    for space in spaces:
        fresh = job(text, namespace=space)
        run(driver, fresh)
        assert fresh.cached_tokens == 0, space
    for space in spaces:
        again = job(text, namespace=space)
        run(driver, again)
        assert again.cached_tokens == 29, space
    assert len(driver.scheduler.cache.tree.roots) == len(spaces)


def test_case_r08_eviction_is_fair_across_namespaces() -> None:
    driver = make(num_slots=100)
    for number in range(4):
        run(driver, job(prompt(20), new=1, namespace=("model", None, str(number))))
    run(driver, job(prompt(20), new=1, namespace=("model", None, "0")))
    run(driver, job(prompt(40, seed=1), new=1))
    left = [job(prompt(20), new=1, namespace=("model", None, str(number))) for number in range(4)]
    for sequence in left:
        driver.submit(sequence)
    driver.step()
    assert left[0].cached_tokens == 19  # the most recently used one, whichever namespace it is in


def test_case_r10_equal_prefixes_in_one_batch_are_computed_once() -> None:
    driver = make(step_tokens=256)
    jobs = [job(prompt(80)) for _ in range(8)]
    for sequence in jobs:
        driver.submit(sequence)
    step = driver.step()
    assert step is not None
    assert len(step.batch.tokens) == 80 + 7
    driver.run()
    outputs = {tuple(sequence.token_ids) for sequence in jobs}
    assert len(outputs) == 1


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight"])
def test_case_r10_a_cold_request_starts_within_its_bound_under_a_hot_stream(policy: str) -> None:
    aging, step_tokens = 300, 32
    driver = make(num_slots=1024, policy=policy, max_running=2, step_tokens=step_tokens, aging_tokens=aging)
    hot = prompt(60)
    run(driver, job(hot))
    before = driver.executor.computed
    cold = job(prompt(60, seed=1))
    stream = [job([*hot, seed]) for seed in range(4)]
    for sequence in stream:
        driver.submit(sequence)
    driver.submit(cold)
    seed = 4
    while cold.state is State.WAITING:
        if len(driver.scheduler.waiting) < 4:  # the stream never ends
            stream.append(job([*hot, seed]))
            driver.submit(stream[-1])
            seed += 1
        driver.step()
    assert driver.executor.computed - before <= aging + 4 * 64 + 2 * step_tokens
    driver.run()
    verify(driver, cold)


def test_dfs_weight_serves_the_heaviest_branch_first() -> None:
    driver = make(policy="dfs-weight", max_running=1, num_slots=2048)
    light, heavy = prompt(50, seed=1), prompt(50, seed=2)
    run(driver, job(light))
    run(driver, job(heavy))
    waiting = [job([*(light if number % 3 == 0 else heavy), number]) for number in range(9)]
    order: list[int] = []
    for sequence in waiting:
        driver.submit(sequence)
    while driver.scheduler.has_work():
        driver.step()
        begun = [n for n, sequence in enumerate(waiting) if sequence.state is not State.WAITING]
        order += [n for n in begun if n not in order]
    assert order[:3] == [1, 2, 4]  # of six against three; then they are equally many
    assert sorted(order) == list(range(9))


def test_higher_priority_goes_first_and_is_preempted_last() -> None:
    driver = make(num_slots=80, max_running=8, decode_reserve=0)
    low = [job(prompt(10, seed=n), new=20) for n in range(3)]
    high = job(prompt(10, seed=9), new=20, priority=5)
    for sequence in [*low, high]:
        driver.submit(sequence)
    driver.step()
    assert driver.scheduler.running[0] is high
    driver.run()
    for sequence in [*low, high]:
        verify(driver, sequence)
    assert driver.scheduler.counters.preemptions > 0
    assert driver.finished[0] is high


def test_case_f05_mixed_requests_with_aborts_never_cross() -> None:
    rng = random.Random(5)
    driver = make(num_slots=700, step_tokens=48)
    jobs = [job(prompt(rng.randrange(5, 60), seed=rng.randrange(6)), new=rng.randrange(1, 12)) for _ in range(160)]
    aborted = set()
    for sequence in jobs:
        driver.submit(sequence)
        if rng.random() < 0.5:
            driver.step()
        if rng.random() < 0.15:
            victim = rng.choice(jobs)
            if victim.arrival >= 0 and victim.state is not State.FINISHED:
                driver.scheduler.abort(victim)
                aborted.add(victim)
    driver.run()
    assert aborted
    for sequence in jobs:
        verify(driver, sequence)
        assert sequence in aborted or len(sequence.token_ids) == sequence.token_limit


def chain(cache: CacheManager, length: int) -> bytes:
    """A path of one-token nodes."""
    tree = cache.tree
    key = token_keys.encode(list(range(length)))
    slots = cache.slots.allocate(length, tree)
    node = tree.root(("model", None, None))
    for position in range(length):
        node = tree.add(node, token_keys.piece(key, position, position + 1), slots[position : position + 1])
    return key


def test_a_chain_of_a_hundred_thousand_nodes_works_everywhere() -> None:
    cache = CacheManager(CacheConfig(num_slots=100_010))
    key = chain(cache, 100_000)
    match = cache.match(("model", None, None), key, 100_000)
    assert match is not None
    assert match.length == 100_000
    row = cache.open_row(("model", None, None), match, 5, keep_free=0, hit=True)
    assert row is not None
    assert np.array_equal(np.sort(row.slots), np.arange(100_005))
    cache.check()
    assert cache.pretty().count("\n") == 100_001
    assert len(cache.dump()["namespaces"][0]["nodes"]) == 100_000
    assert cache.explain(("model", None, None), list(range(100_001))).matched == 100_000
    cache.release(row, key, 100_000)
    assert cache.flush() == 100_000
    cache.check()


def test_a_prompt_of_a_hundred_thousand_tokens_is_extended_in_chunks() -> None:
    cache = CacheManager(CacheConfig(num_slots=120_000))
    scheduler = Scheduler(SchedulerConfig(context_length=110_000, step_tokens=4096), cache)
    tokens = list(range(100_000))
    for expected in (0, 99_999):
        sequence = job(tokens, new=1)
        scheduler.add(sequence)
        while sequence.computed < 100_000:
            step = scheduler.schedule()
            assert step is not None
            scheduler.complete(step)
        scheduler.finish(sequence)
        assert sequence.cached_tokens == expected
    cache.check()


def test_a_hundred_thousand_leaves_are_found_and_evicted_in_order() -> None:
    cache = CacheManager(CacheConfig(num_slots=100_100))
    space = ("model", None, None)
    start = time.perf_counter()
    for leaf in range(100_000):
        key = token_keys.encode([7, leaf])
        row = cache.open_row(space, cache.match(space, key, 2), 2 if leaf == 0 else 1, keep_free=0, hit=True)
        assert row is not None
        cache.release(row, key, 2)
    assert cache.tree.evictable == 100_001
    assert cache.evict(50_000) == 50_000
    assert cached(cache, [7, 49_999]) == 1
    assert cached(cache, [7, 50_000]) == 2
    cache.check()
    assert cache.flush() == 50_001
    assert time.perf_counter() - start < 60  # a quadratic step would take hours
    assert len(cache.evictor) == 0
