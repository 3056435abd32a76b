"""Random work for a scheduler over the arithmetic model, with everything checked after every operation.

Each operation draws from a seed, so that hypothesis can shrink a failing run and a plain loop can make a long one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from lmprog_runtime.cache import CacheConfig, CacheManager, Lease, TierConfig, Tiers
from lmprog_runtime.errors import PromptTooLong
from lmprog_runtime.scheduler import (
    CascadeRule,
    ScheduledStep,
    Scheduler,
    SchedulerConfig,
    Sequence,
    State,
    StepOutput,
    TokenTree,
)
from tests.support.fake_executor import FakeExecutor, reference_outputs, sample

_TRUNKS = [Random(seed).choices(range(4), k=48) for seed in (1, 1, 2)]
_TREES = [TokenTree((1, 2, 3, 0, 1), (-1, 0, 0, -1, 3)), TokenTree((2,), (-1,)), TokenTree((0, 1, 2, 3), (-1, 0, 1, 1))]
_MOST_LIVE = 12


class SchedulerModel:
    def __init__(self, seed: int) -> None:
        random = Random(seed)
        page_size = random.choice([1, 1, 1, 4])
        num_slots = random.choice([48, 64, 120])
        self.executor = FakeExecutor(num_slots)
        tiers = TierConfig(
            host_bytes=24 * 4 * random.choice([2, 60]), block_tokens=4, write_on_hit=random.choice([None, 0, 1])
        )
        self.cache = CacheManager(
            CacheConfig(
                num_slots=num_slots,
                page_size=page_size,
                policy=random.choice(["lru", "lfu", "slru", "fifo", "priority", "cost"]),
                lease_share=random.choice([0.3, 0.9]),
                debug_owners=True,
            ),
            tiers=random.choice([None, Tiers(tiers, self.executor)]),
        )
        cascade = CascadeRule(
            min_saved=random.choice([1, 12]), max_states=random.choice([2, 100]), alignment=random.choice([1, 4])
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                context_length=60,
                step_tokens=random.choice([6, 13, 40]),
                max_running=random.choice([2, 6, 6]),
                policy=random.choice(["fcfs", "lpm", "dfs-weight"]),
                aging_tokens=random.choice([0, 50, 10_000]),
                decode_reserve=random.choice([0, 0, 3]),
                growth_run=random.choice([0, 5]),
                cascade=random.choice([None, cascade, cascade]),
            ),
            self.cache,
        )
        self.live: dict[Sequence, dict[int, int]] = {}
        self.leases: list[Lease] = []
        self.drafts: dict[Sequence, int] = {}  # accepted length of a sequence with drafts behind it
        self.operations = 0

    def do(self, operation: Callable[[SchedulerModel, Random], None], seed: int) -> None:
        operation(self, Random(seed))
        self.cache.check()
        self.operations += 1

    # -- operations

    def submit(self, random: Random) -> None:
        count = random.choice([1, 1, 1, 2, 4])
        if len(self.live) + count > _MOST_LIVE:
            return
        prompt = self._prompt(random)
        group = [self._sequence(random, prompt + random.choices(range(4), k=random.randrange(3))) for _ in range(count)]
        try:
            self.scheduler.add(group if count > 1 else group[0])
        except PromptTooLong:
            assert any(s.total > self.cache.num_slots or s.total + s.max_new_tokens > 60 for s in group)
            return
        self.live.update({sequence: {} for sequence in group})

    def _prompt(self, random: Random) -> list[int]:
        trunk = random.choice(_TRUNKS)
        return trunk[: random.randrange(1, len(trunk))]

    def _sequence(self, random: Random, prompt: list[int]) -> Sequence:
        lease = random.choice([None, self.cache.open_lease(), *self.leases])
        if lease is not None and lease not in self.leases:
            self.leases.append(lease)
        return Sequence(
            prompt,
            len(prompt),
            ("model", None, random.choice([None, "", None])),
            random.choice([1, 3, 20]),
            priority=random.choice([0, 0, 1]),
            use_cache=random.random() < 0.9,
            lease=lease,
            logits_from=random.choice([None, None, random.randrange(len(prompt))]),
            tree=random.choice([None] * 6 + _TREES),
        )

    def step(self, random: Random) -> None:
        step = self.scheduler.schedule()
        if step is None:
            idle = all(sequence.computed == sequence.total for sequence in self.scheduler.running)
            assert idle, "there is work and nothing is scheduled"
            assert self.scheduler.running or not len(self.scheduler.waiting)
            return
        self._examine(step)
        self.cache.check()
        outputs = self.executor.step(step.batch)
        self.scheduler.complete(step)
        self.cache.check()
        for output in step.outputs:
            self._take(random, output, outputs)

    def step_with_aborts(self, random: Random) -> None:
        """Requests are aborted while their step runs; then it ends well or not."""
        step = self.scheduler.schedule()
        if step is None:
            return
        for chunk in random.sample(step.chunks, random.randrange(1, len(step.chunks) + 1)):
            self._abort(chunk.sequence)
            self.cache.check()
        if random.random() < 0.5:
            self._crash(step)
            return
        outputs = self.executor.step(step.batch)
        self.scheduler.complete(step)
        for output in step.outputs:
            if output.sequence in self.live:
                self._take(random, output, outputs)

    def crash(self, random: Random) -> None:
        step = self.scheduler.schedule()
        if step is not None:
            self._crash(step)

    def _crash(self, step: ScheduledStep) -> None:
        self.executor.corrupt(step.batch)
        self.scheduler.fail(step)
        for chunk in step.chunks:
            assert chunk.sequence.state is State.FINISHED
            self._forget(chunk.sequence)

    def abort(self, random: Random) -> None:
        if self.live:
            self._abort(random.choice(list(self.live)))

    def finish_early(self, random: Random) -> None:
        """A stop string, say."""
        if self.live:
            sequence = random.choice(list(self.live))
            self.scheduler.finish(sequence, dead=random.random() < 0.3)
            self._verify(sequence)
            self._forget(sequence)

    def end_lease(self, random: Random) -> None:
        if self.leases:
            lease = self.leases.pop(random.randrange(len(self.leases)))
            self.cache.close_lease(lease, random.choice([None, random.randrange(50)]))

    def fork_lease(self, random: Random) -> None:
        if self.leases and len(self.leases) < 8:
            self.leases.append(self.cache.fork_lease(random.choice(self.leases)))

    def soften_lease(self, random: Random) -> None:
        if self.leases:
            self.cache.will_return(random.choice(self.leases))

    def expire_lease(self, random: Random) -> None:
        self.cache.revoke_lease()

    def evict(self, random: Random) -> None:
        self.cache.evict(random.randrange(1, 20))

    def flush(self, random: Random) -> None:
        self.cache.flush()
        assert self.cache.tree.evictable == 0

    def drain(self, random: Random) -> None:
        """All work ends within a bounded number of steps."""
        for _ in range(2000):
            if not self.scheduler.has_work():
                break
            self.step(random)
        assert not self.live
        assert self.cache.held == 0

    def close(self) -> None:
        """At idle nothing is locked but by leases, and flushing frees all."""
        self.drain(Random(0))
        for lease in self.leases:
            self.cache.close_lease(lease)
        assert self.cache.tree.protected == 0
        self.cache.flush()
        assert self.cache.slots.free_count == self.cache.num_slots
        assert not self.cache.tree.roots
        self.cache.check()

    # -- checks

    def _examine(self, step: ScheduledStep) -> None:
        rows = len(step.batch.tokens)
        assert 0 < rows <= self.scheduler.config.step_tokens
        assert len(self.scheduler.running) <= self.scheduler.config.max_running
        assert len({chunk.sequence for chunk in step.chunks}) == len(step.chunks)
        assert np.all(np.diff(step.batch.logit_rows) > 0)

    def _take(self, random: Random, output: StepOutput, outputs: np.ndarray) -> None:
        sequence, first, start, count = output
        given = self.live[sequence]
        for offset in range(count):
            assert first + offset not in given, "an output was delivered twice"
            given[first + offset] = int(outputs[start + offset])
        if first + count < sequence.total:
            return
        if sequence in self.drafts:
            self._accept_some(random, sequence)
        token = sample(np.uint64(given[len(sequence.token_ids) - 1])) % 4
        if sequence.tree is not None or len(sequence.token_ids) + 1 >= sequence.token_limit:
            self.scheduler.finish(sequence)
            self._verify(sequence)
            self._forget(sequence)
            return
        self._continue(random, sequence, token)

    def _accept_some(self, random: Random, sequence: Sequence) -> None:
        accepted = random.randrange(self.drafts.pop(sequence), len(sequence.token_ids) + 1)
        self.scheduler.rewind(sequence, accepted)
        given = self.live[sequence]
        for position in [position for position in given if position >= accepted]:
            del given[position]

    def _continue(self, random: Random, sequence: Sequence, token: int) -> None:
        room = sequence.token_limit - len(sequence.token_ids) - 2  # at its limit it would have to be finished
        more = random.choices(range(4), k=random.choice([0, 0, 0, min(room, 3)]))
        kind = random.choice(["forced", "forced with logits", "drafts"])
        start = len(sequence.token_ids)
        self.scheduler.append(sequence, [token, *more], start if more and kind != "forced" else None)
        if more and kind == "drafts":
            self.drafts[sequence] = start + 1

    def _abort(self, sequence: Sequence) -> None:
        self.scheduler.abort(sequence)
        self.scheduler.abort(sequence)
        self._verify(sequence)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        assert sequence.row is None
        self.live.pop(sequence, None)
        self.drafts.pop(sequence, None)

    def _verify(self, sequence: Sequence) -> None:
        expected = reference_outputs(sequence.token_ids)
        for position, value in self.live[sequence].items():
            if position < len(expected):
                assert value == expected[position]
            else:
                assert value == reference_outputs(sequence.token_ids + _branch(sequence, position))[-1]


def _branch(sequence: Sequence, entry: int) -> list[int]:
    assert sequence.tree is not None
    node, tokens = entry - len(sequence.token_ids), []
    while node >= 0:
        tokens.append(sequence.tree.tokens[node])
        node = sequence.tree.parents[node]
    return tokens[::-1]


OPERATIONS: dict[Callable[[SchedulerModel, Random], None], float] = {
    SchedulerModel.submit: 6,
    SchedulerModel.step: 12,
    SchedulerModel.step_with_aborts: 0.3,
    SchedulerModel.crash: 0.3,
    SchedulerModel.abort: 0.6,
    SchedulerModel.finish_early: 0.6,
    SchedulerModel.end_lease: 1,
    SchedulerModel.fork_lease: 0.5,
    SchedulerModel.soften_lease: 0.5,
    SchedulerModel.expire_lease: 0.2,
    SchedulerModel.evict: 0.5,
    SchedulerModel.flush: 0.1,
}
