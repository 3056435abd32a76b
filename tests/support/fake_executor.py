"""A model made of arithmetic, as an exact oracle for plans, rows, sharing and publishing.

It has two layers. The first gives each row a context: a hash of the (token, position) list that the attention plan lets
it see. The second gives the output: a hash of the visible (token, position, context) list. So a slot that holds the
right token from the wrong past changes the output, as it would in a transformer. A plan that shows a row a key twice,
not at all, or out of place is refused. Equal prefixes give equal outputs, bit for bit, however they were computed.
"""

from __future__ import annotations

from collections.abc import Sequence as TokenIds

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.scheduler import ScheduledStep, Scheduler, Sequence
from lmprog_runtime.step import StepBatch

UInt64Array = NDArray[np.uint64]
VOCABULARY = 1000
_PRIMES = tuple(np.uint64(p) for p in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


class PlanError(AssertionError):
    """The step shows a row something else than its own past."""


class FakeExecutor:
    """`step(batch)` returns [outputs] uint64 in place of logits; `sample` makes a token of one."""

    dtype = kv_dtype = "fake"

    def __init__(self, num_slots: int) -> None:
        self.tokens = np.full(num_slots, -1, dtype=np.int64)
        self.positions = np.full(num_slots, -1, dtype=np.int64)
        self.contexts = np.zeros(num_slots, dtype=np.uint64)
        self.computed = 0
        self.steps = 0

    def step(self, batch: StepBatch) -> UInt64Array:
        if len(set(batch.slots.tolist())) != len(batch.slots):
            raise PlanError("two rows write one slot")
        self.tokens[batch.slots], self.positions[batch.slots] = batch.tokens, batch.positions
        visible = [self._visible(batch, row) for row in range(len(batch.tokens))]
        for row, slots in enumerate(visible):
            self.contexts[batch.slots[row]] = _mix(self.tokens[slots], self.positions[slots]).sum()
        self.computed += len(batch.tokens)
        self.steps += 1
        return np.array([self._output(visible[row]) for row in batch.logit_rows.tolist()], dtype=np.uint64)

    def read_kv(self, slots: NDArray[np.int32]) -> NDArray[np.uint8]:
        columns = (self.tokens, self.positions, self.contexts.view(np.int64))
        return np.stack([column[slots] for column in columns], axis=1).view(np.uint8)

    def write_kv(self, slots: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        tokens, positions, contexts = np.ascontiguousarray(data).view(np.int64).T
        self.tokens[slots], self.positions[slots], self.contexts[slots] = tokens, positions, contexts.view(np.uint64)

    def corrupt(self, batch: StepBatch) -> None:
        """What a pass that raised half-way leaves behind."""
        self.tokens[batch.slots], self.contexts[batch.slots] = -7, np.uint64(7)

    def _output(self, slots: NDArray[np.int32]) -> np.uint64:
        return _finish(_mix(self.tokens[slots], self.positions[slots], self.contexts[slots]).sum())

    def _visible(self, batch: StepBatch, row: int) -> NDArray[np.int32]:
        parts = []
        for first, count, key, key_count, diagonal, position in batch.plan.items.tolist():
            if first <= row < first + count:
                seen = min(key_count, row - first + diagonal + 1)
                part = batch.plan.key_slots[key : key + seen]
                if seen < 1 or self.positions[part].tolist() != list(range(position, position + seen)):
                    raise PlanError(f"row {row}: keys at {self.positions[part]} instead of {seen} from {position} on")
                parts.append(part)
        slots = np.concatenate(parts)
        own = int(batch.positions[row])
        if sorted(self.positions[slots].tolist()) != list(range(own + 1)):
            raise PlanError(f"row {row} at position {own} sees positions {sorted(self.positions[slots].tolist())}")
        if batch.slots[row] not in slots:
            raise PlanError(f"row {row} does not see itself")
        return slots[np.argsort(self.positions[slots])]


def _mix(*columns: NDArray[np.generic]) -> UInt64Array:
    mixed = np.ones(len(columns[0]), dtype=np.uint64)
    for column, prime in zip(columns, _PRIMES, strict=False):
        mixed = (mixed ^ column.astype(np.uint64)) * prime
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _finish(total: np.uint64) -> np.uint64:
    return np.uint64(int(total) * int(_PRIMES[0]) % 2**64 >> 7)


def sample(output: np.uint64) -> int:
    return int(output) % VOCABULARY


def reference_outputs(token_ids: TokenIds[int]) -> list[int]:
    """The output at every position, with no cache, no batch and no plan."""
    tokens, positions = np.array(token_ids, dtype=np.int64), np.arange(len(token_ids))
    contexts = np.cumsum(_mix(tokens, positions), dtype=np.uint64)
    totals = np.cumsum(_mix(tokens, positions, contexts), dtype=np.uint64)
    return [int(_finish(total)) for total in totals]


def reference_generation(prompt: TokenIds[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(reference_outputs(tokens)[-1] % VOCABULARY)
    return tokens[len(prompt) :]


class Driver:
    """The engine's loop over a scheduler and the fake model; keeps every output that a sequence was given."""

    def __init__(self, scheduler: Scheduler, executor: FakeExecutor | None = None, *, check: bool = True) -> None:
        self.scheduler = scheduler
        self.executor = executor or FakeExecutor(scheduler.cache.num_slots)
        self.outputs: dict[Sequence, dict[int, int]] = {}
        self.finished: list[Sequence] = []
        self._check = check

    def submit(self, *sequences: Sequence) -> None:
        """One sequence, or several as a group."""
        self.scheduler.add(list(sequences) if len(sequences) > 1 else sequences[0])
        self.outputs.update({sequence: {} for sequence in sequences})

    def step(self) -> ScheduledStep | None:
        step = self.scheduler.schedule()
        if step is None:
            return None
        self._verify()
        outputs = self.executor.step(step.batch)
        self.scheduler.complete(step)
        self._verify()
        self.deliver(step, outputs)
        self._verify()
        return step

    def fail_step(self) -> ScheduledStep | None:
        step = self.scheduler.schedule()
        if step is not None:
            self.executor.corrupt(step.batch)
            self.scheduler.fail(step)
            self._verify()
        return step

    def deliver(self, step: ScheduledStep, outputs: UInt64Array) -> None:
        for sequence, first, start, count in step.outputs:
            if sequence.row is None:
                continue  # aborted in flight
            for offset in range(count):
                assert first + offset not in self.outputs[sequence], "an output was delivered twice"
                self.outputs[sequence][first + offset] = int(outputs[start + offset])
            if first + count == sequence.total:
                self._advance(sequence, outputs[start + count - 1])

    def _advance(self, sequence: Sequence, output: np.uint64) -> None:
        if sequence.tree is None and len(sequence.token_ids) < sequence.token_limit:
            self.scheduler.append(sequence, [sample(output)])
        if sequence.tree is not None or len(sequence.token_ids) >= sequence.token_limit:
            self.scheduler.finish(sequence)
            self.finished.append(sequence)

    def run(self, most_steps: int = 10_000) -> None:
        for _ in range(most_steps):
            if not self.scheduler.has_work():
                return
            assert self.step() is not None, "work is left and nothing is scheduled"
        raise AssertionError(f"not done after {most_steps} steps")

    def _verify(self) -> None:
        if self._check:
            self.scheduler.cache.check()


def verify(driver: Driver, sequence: Sequence) -> None:
    """All outputs that a sequence was given are the reference's."""
    given = driver.outputs[sequence]
    if sequence.tree is None:
        expected = reference_outputs(sequence.token_ids)
        assert given == {position: expected[position] for position in given}
        assert sequence.token_ids[sequence.prompt_length :] == reference_generation(
            sequence.token_ids[: sequence.prompt_length], len(sequence.token_ids) - sequence.prompt_length
        )
        return
    for node in range(-1, len(sequence.tree.tokens)):
        branch, walker = [], node
        while walker >= 0:
            branch.append(sequence.tree.tokens[walker])
            walker = sequence.tree.parents[walker]
        tokens = sequence.token_ids + branch[::-1]
        assert given[sequence.prompt_length + node] == reference_outputs(tokens)[-1]
