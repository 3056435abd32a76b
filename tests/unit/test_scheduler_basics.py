"""The scheduler over the arithmetic model: every output equals the one computed with no cache and no batch."""

from __future__ import annotations

import random

import pytest

from lmprog_runtime.cache import CacheConfig, CacheManager
from lmprog_runtime.errors import PromptTooLong
from lmprog_runtime.scheduler import Scheduler, SchedulerConfig, Sequence, State, TokenTree
from tests.support.fake_executor import Driver, sample, verify


def make(
    num_slots: int = 256, *, page_size: int = 1, context_length: int = 8192, enabled: bool = True, **config: object
) -> Driver:
    cache = CacheManager(CacheConfig(num_slots=num_slots, page_size=page_size, enabled=enabled, debug_owners=True))
    defaults = {"step_tokens": 32, "max_running": 8, "decode_reserve": 2, "growth_run": 4}
    return Driver(Scheduler(SchedulerConfig(context_length=context_length, **{**defaults, **config}), cache))


def job(tokens: list[int], new: int = 4, **fields: object) -> Sequence:
    return Sequence(list(tokens), len(tokens), ("model", None, None), new, **fields)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_cold_warm_and_extended_prompts_agree(page_size: int) -> None:
    driver = make(page_size=page_size)
    text = prompt(50)
    jobs = [job(text), job(text), job(text[:30] + prompt(20, seed=1)), job(text + prompt(9, seed=2), use_cache=False)]
    for sequence in jobs:
        driver.submit(sequence)
        driver.run()
        verify(driver, sequence)
    floor = {1: (49, 30), 4: (48, 28), 16: (48, 16)}[page_size]
    assert [sequence.cached_tokens for sequence in jobs] == [0, *floor, 0]


def test_equal_prompts_in_one_step_are_computed_once() -> None:
    driver = make(step_tokens=100)
    jobs = [job(prompt(60)) for _ in range(8)]
    for sequence in jobs:
        driver.submit(sequence)
    step = driver.step()
    assert step is not None
    assert len(step.batch.tokens) == 60 + 7
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)
    assert [sequence.cached_tokens for sequence in jobs] == [0] + [59] * 7


def test_followers_wait_for_a_leader_in_chunks_and_never_with_rows_to_spare() -> None:
    driver = make(step_tokens=16)
    leader, near, far = job(prompt(120)), job([*prompt(120)[:20], 1, 2, 3]), job([*prompt(120)[:100], 4])
    driver.submit(leader, near, far)
    while State.WAITING in (near.state, far.state):
        step = driver.step()
        assert step is not None
        assert len(step.batch.tokens) == 16 or State.WAITING not in (near.state, far.state)
    driver.run()
    for sequence in (leader, near, far):
        verify(driver, sequence)
    assert (near.cached_tokens, far.cached_tokens) == (20, 100)


def test_a_group_joins_in_one_step_even_beyond_the_budget() -> None:
    driver = make(step_tokens=40)
    branches = [job(prompt(30) + prompt(20, seed=seed)) for seed in range(1, 6)]
    driver.submit(*branches)
    driver.step()
    assert {sequence.state for sequence in branches} == {State.RUNNING}
    driver.run()
    for sequence in branches:
        verify(driver, sequence)
    assert driver.executor.computed == 30 + 5 * 20 + 5 * 3


def test_preemption_continues_exactly() -> None:
    driver = make(num_slots=64)
    jobs = [job(prompt(10, seed=seed), new=30) for seed in range(6)]
    for sequence in jobs:
        driver.submit(sequence)
    driver.run()
    for sequence in jobs:
        verify(driver, sequence)
    assert driver.scheduler.counters.preemptions > 0
    assert driver.scheduler.cache.held == 0


def test_prompt_logits_after_a_hit_are_all_delivered() -> None:
    driver = make()
    text = prompt(40)
    driver.submit(job(text))
    driver.run()
    for start in (0, 20, 39):
        sequence = job(text, logits_from=start)
        driver.submit(sequence)
        driver.run()
        verify(driver, sequence)
        assert sorted(driver.outputs[sequence])[:1] == [start]
        assert sequence.cached_tokens == start


TREE = TokenTree((5, 6, 7, 8, 9, 10, 11), (-1, 0, 1, 1, 0, -1, 5))


@pytest.mark.parametrize("step_tokens", [8, 13, 64])
@pytest.mark.parametrize("length", [1, 20])
def test_token_trees_score_every_branch(step_tokens: int, length: int) -> None:
    driver = make(step_tokens=step_tokens)
    sequence = job(prompt(length), new=0, tree=TREE)
    driver.submit(sequence)
    driver.run()
    verify(driver, sequence)
    assert driver.scheduler.cache.tree.evictable == length


def test_token_tree_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="preorder"):
        job(prompt(4), tree=TokenTree((1, 2, 3), (-1, -1, 0)))


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    driver = make(num_slots=256)
    with pytest.raises(PromptTooLong, match=r"300 tokens and the pool holds 256"):
        driver.submit(job(prompt(300)))
    with pytest.raises(PromptTooLong, match=r"prompt of 8000 tokens and 500 more .* 8192"):
        driver.submit(job(prompt(8000), new=500))
    with pytest.raises(ValueError, match="no tokens"):
        driver.submit(job([]))
    tight, small = job(prompt(250), new=50), job(prompt(10, seed=3))
    driver.submit(tight)
    driver.submit(small)
    driver.run()
    for sequence in (tight, small):
        verify(driver, sequence)
    assert len(tight.token_ids) == 257  # the pool's end; the last token needs no slot
    branches = [job([*prompt(200), seed], new=20) for seed in range(50)]
    driver.submit(*branches)
    driver.run()
    for sequence in branches:
        verify(driver, sequence)


@pytest.mark.parametrize("victim", ["leader", "follower"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_abort_frees_at_once_and_leaves_others_right(victim: str, in_flight: bool) -> None:
    driver = make(step_tokens=64)
    leader, follower = job(prompt(100)), job([*prompt(100)[:40], 1, 2])
    driver.submit(leader)
    driver.submit(follower)
    gone, other = (leader, follower) if victim == "leader" else (follower, leader)
    step = driver.scheduler.schedule()
    assert step is not None
    if in_flight:
        driver.scheduler.abort(gone)
        driver.scheduler.cache.check()
    outputs = driver.executor.step(step.batch)
    driver.scheduler.complete(step)
    driver.deliver(step, outputs)
    driver.scheduler.abort(gone)
    driver.scheduler.abort(gone)
    driver.scheduler.cache.check()
    assert gone.state is State.FINISHED
    driver.run()
    verify(driver, other)
    again = job(prompt(100))
    driver.submit(again)
    driver.run()
    verify(driver, again)


def test_abort_in_flight_then_failure_takes_out_what_was_not_computed() -> None:
    driver = make(step_tokens=64)
    leader, follower = job(prompt(50)), job(prompt(50))
    driver.submit(leader)
    driver.submit(follower)
    step = driver.scheduler.schedule()
    assert step is not None
    driver.scheduler.abort(leader)
    driver.executor.corrupt(step.batch)
    driver.scheduler.fail(step)
    driver.scheduler.cache.check()
    assert driver.scheduler.cache.slots.free_count == 256
    assert not driver.scheduler.has_work()
    assert not driver.scheduler.cache.tree.roots


def test_a_failed_step_ends_its_sequences_only() -> None:
    driver = make(step_tokens=16, max_running=2)
    jobs = [job(prompt(30, seed=seed)) for seed in range(4)]
    for sequence in jobs:
        driver.submit(sequence)
    driver.step()
    failed = driver.fail_step()
    assert failed is not None
    ended = {chunk.sequence for chunk in failed.chunks}
    driver.run()
    assert {sequence.state for sequence in jobs} == {State.FINISHED}
    for sequence in jobs:
        if sequence not in ended:
            verify(driver, sequence)
    again = job(prompt(30, seed=0))
    driver.submit(again)
    driver.run()
    verify(driver, again)
    assert again.cached_tokens == 16


def test_no_reuse_when_the_cache_is_off() -> None:
    driver = make(enabled=False)
    for _ in range(2):
        sequence = job(prompt(50))
        driver.submit(sequence)
        driver.run()
        verify(driver, sequence)
        assert sequence.cached_tokens == 0
    assert driver.scheduler.cache.slots.free_count == 256


def test_namespaces_never_share() -> None:
    driver = make()
    salts = [None, "", "a", "a:b"]
    for salt in salts:
        for adapter in (None, "b", "a:b"):
            sequence = Sequence(prompt(10), 10, ("model", adapter, salt), 2)
            driver.submit(sequence)
            driver.run()
            verify(driver, sequence)
            assert sequence.cached_tokens == 0


def test_leases_keep_a_prefix_and_give_way_to_running_work() -> None:
    driver = make(num_slots=64)
    lease = driver.scheduler.cache.open_lease()
    held = job(prompt(25), lease=lease)
    driver.submit(held)
    driver.run()
    assert driver.scheduler.cache.flush() == 0
    assert driver.scheduler.cache.tree.protected == 28
    large = job(prompt(60, seed=1))
    driver.submit(large)
    driver.run()
    verify(driver, large)
    assert driver.scheduler.cache.leases.revoked == 1
    driver.scheduler.cache.close_lease(lease)
    driver.scheduler.cache.close_lease(lease)
    assert driver.scheduler.cache.tree.protected == 0


def test_tokens_beyond_the_limit_are_refused() -> None:
    driver = make()
    sequence = job(prompt(10), new=2)
    driver.submit(sequence)
    with pytest.raises(ValueError, match="limit of 12"):
        driver.scheduler.append(sequence, [1, 2, 3])


def test_longest_prefix_first_and_the_cold_one_within_its_bound() -> None:
    driver = make(num_slots=512, policy="lpm", max_running=1, step_tokens=32, aging_tokens=400)
    hot = prompt(40)
    driver.submit(job([*hot, 1]))
    driver.step()
    before = driver.executor.computed
    cold, warm = job(prompt(40, seed=1)), []
    driver.submit(cold)
    while cold.state is State.WAITING:
        warm.append(job([*hot, len(warm)]))
        driver.submit(warm[-1])
        driver.step()
    assert sum(sequence.state is not State.WAITING for sequence in warm) > 50  # the policy prefers them
    running, overshoot, step = 12, 4, 32  # what ran when it came, the last to overtake it, the step it starts in
    assert driver.executor.computed - before <= 400 + running + overshoot + step
    driver.run()
    for sequence in [cold, *warm]:
        verify(driver, sequence)


def test_requests_that_came_together_do_not_age_each_other() -> None:
    driver = make(num_slots=512, policy="lpm", max_running=1, aging_tokens=5)
    driver.submit(job(prompt(40)))
    driver.step()
    jobs = [job([*prompt(40, seed=number % 2), number], new=2) for number in range(20)]
    for sequence in jobs:
        driver.submit(sequence)
    driver.run()
    order = [jobs.index(sequence) % 2 for sequence in driver.finished if sequence in jobs]
    assert order == [0] * 10 + [1] * 10


def test_unknown_policy_is_refused_with_a_guess() -> None:
    with pytest.raises(ValueError, match="did you mean 'lpm'"):
        make(policy="lmp")


def test_room_kept_for_those_that_run_spares_preemptions() -> None:
    preemptions = []
    for reserve in (0, 20):
        driver = make(num_slots=64, decode_reserve=reserve)
        jobs = [job(prompt(10, seed=seed), new=20) for seed in range(6)]
        for sequence in jobs:
            driver.submit(sequence)
        driver.run()
        for sequence in jobs:
            verify(driver, sequence)
        preemptions.append(driver.scheduler.counters.preemptions)
    assert preemptions[0] > preemptions[1] == 0


def test_a_member_of_a_group_that_has_not_begun_survives_the_failing_step_it_relies_on() -> None:
    driver = make(step_tokens=20, max_running=4)
    leader, member = job(prompt(20)), job([*prompt(10), 1, 2, 3])
    driver.submit(leader, member)
    step = driver.scheduler.schedule()
    assert step is not None
    assert [chunk.sequence for chunk in step.chunks] == [leader]
    assert member.row is not None  # admitted with its leader, on tokens of this step
    driver.executor.corrupt(step.batch)
    driver.scheduler.fail(step)
    driver.scheduler.cache.check()
    assert (leader.state, member.state) == (State.FINISHED, State.PREEMPTED)
    driver.run()
    verify(driver, member)


def test_slots_taken_ahead_are_given_back_before_anybody_is_preempted() -> None:
    driver = make(num_slots=64, growth_run=30, decode_reserve=0)
    jobs = [job(prompt(10, seed=seed), new=20) for seed in range(2)]
    for sequence in jobs:
        driver.submit(sequence)
    driver.run()
    third = [job(prompt(8, seed=seed), new=14) for seed in range(3)]
    driver.submit(*third)
    driver.run()
    assert driver.scheduler.counters.preemptions == 0
    for sequence in jobs + third:
        verify(driver, sequence)


def test_a_growing_sequence_takes_from_leases_before_it_preempts() -> None:
    driver = make(num_slots=64, decode_reserve=0)
    lease = driver.scheduler.cache.open_lease()
    driver.submit(job(prompt(20), lease=lease))
    driver.run()
    growing = [job(prompt(10, seed=seed), new=15) for seed in (1, 2)]
    driver.submit(*growing)
    driver.run()
    assert lease.node is None
    assert driver.scheduler.counters.preemptions == 0
    for sequence in growing:
        verify(driver, sequence)


def test_a_growing_row_continues_its_run() -> None:
    driver = make(growth_run=4)
    sequence = job(prompt(10), new=40)
    driver.submit(sequence)
    driver.step()
    for _ in range(35):
        driver.step()
    assert sequence.row is not None
    first = int(sequence.row.slots[0])
    assert sequence.row.slots.tolist() == list(range(first, first + sequence.row.allocated))


def test_no_cached_prefix_goes_for_slots_taken_ahead() -> None:
    """Two growing sequences in a pool that a cached prompt fills but for a few slots."""
    driver = make(num_slots=128, growth_run=32, decode_reserve=2)
    driver.submit(job(prompt(60)))
    driver.run()
    cache = driver.scheduler.cache
    driver.submit(*(job(prompt(10, seed=seed), new=60) for seed in (1, 2)))
    for _ in range(8):
        driver.step()
    assert cache.counters.evicted == 0


def test_rejected_drafts_are_taken_back() -> None:
    driver = make()
    sequence = job(prompt(10), new=8)
    driver.scheduler.add(sequence)
    driver.outputs[sequence] = {}
    first = driver.scheduler.schedule()
    assert first is not None
    token = sample(driver.executor.step(first.batch)[0])
    driver.scheduler.complete(first)
    driver.scheduler.append(sequence, [token, 5, 6, 7], logits_from=10)
    second = driver.scheduler.schedule()
    assert second is not None
    [output] = second.outputs
    assert (output.first_position, output.row_count) == (10, 4)
    accepted = sample(driver.executor.step(second.batch)[0])
    driver.scheduler.complete(second)
    driver.scheduler.rewind(sequence, 11)
    driver.scheduler.append(sequence, [accepted])
    driver.run()
    verify(driver, sequence)
    assert sequence.token_ids[10:12] == [token, accepted]
