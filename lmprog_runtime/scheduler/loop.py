"""Which tokens are computed in the next step.

A step holds decodes first, then extend chunks of running sequences, then newly admitted ones, within a budget of rows.
Owns the states of sequences and their rows; knows nothing of sampling, text or the model. One thread calls it:
schedule -> (forward pass) -> complete or fail -> append / finish, and add / abort at any time.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import Enum, auto
from itertools import count

from lmprog_runtime.cache.lease import Lease
from lmprog_runtime.cache.manager import CacheManager
from lmprog_runtime.cache.radix_tree import Match
from lmprog_runtime.cache.row import Row
from lmprog_runtime.errors import PromptTooLong
from lmprog_runtime.scheduler.batch import DecodeSteps, ScheduledStep, build_step
from lmprog_runtime.scheduler.cascade import Layout, SharedPart, lay_out, shared_parts
from lmprog_runtime.scheduler.chunk import Chunk
from lmprog_runtime.scheduler.config import SchedulerConfig
from lmprog_runtime.scheduler.sequence import Sequence, State
from lmprog_runtime.scheduler.waiting import Entry, WaitingLine, service_order


class _Admission(Enum):
    ADMITTED = auto()
    WAITS_FOR_LEADER = auto()
    NO_ROOM = auto()


@dataclass(slots=True)
class SchedulerCounters:
    """Since the start."""

    steps: int = 0
    computed_tokens: int = 0  # rows of completed steps
    preemptions: int = 0
    aborted: int = 0
    failed: int = 0


class Scheduler:
    def __init__(self, config: SchedulerConfig, cache: CacheManager) -> None:
        self.config = config
        self.cache = cache
        self.counters = SchedulerCounters()
        self.running: list[Sequence] = []  # by priority, then arrival
        self.waiting = WaitingLine(config.policy, config.aging_tokens, self._match)
        self._arrivals = count()
        self._clock = 0  # rows scheduled so far: the only time there is
        self._in_flight: ScheduledStep | None = None
        self._layout = Layout([], [])
        self._laid_out: list[Sequence] = []  # what `_layout` is for; emptied when a path changes
        self._shared: list[SharedPart] = []
        self._shared_rows: list[int] = []  # what `_shared` is for, besides `_layout`
        self._decodes: DecodeSteps | None = None  # what the last step was one of; None also when a path changes

    # -- what comes in

    @property
    def max_tokens(self) -> int:
        """Longest sequence that can be served: the context, or what the pool holds and one sampled token more."""
        return min(self.config.context_length, self.cache.num_slots + 1)

    def add(self, sequences: Sequence | list[Sequence]) -> None:
        """A list is a group, admitted in one step when it fits at once, else one after the other. PromptTooLong, and
        nothing added, when one of them can never fit. ValueError for an empty prompt."""
        group = sequences if isinstance(sequences, list) else [sequences]
        for sequence in group:
            self.check_fits(sequence)
        for sequence in group:
            sequence.begin(min(sequence.prompt_length + sequence.max_new_tokens, self.max_tokens))
            sequence.arrival = next(self._arrivals)
            if sequence.use_cache:
                self.cache.prefetch(sequence.namespace, sequence.key())
        self.waiting.add(list(group), self._clock)

    def check_fits(self, sequence: Sequence) -> None:
        """PromptTooLong when it could never run here, even alone; ValueError for an empty prompt."""
        if not sequence.token_ids:
            raise ValueError("The prompt has no tokens; give at least one.")
        depth = 0 if sequence.trie is None else sequence.trie.height
        new = max(sequence.max_new_tokens, depth)
        if sequence.prompt_length + new > self.config.context_length:
            raise PromptTooLong(
                f"The prompt of {sequence.prompt_length} tokens and {new} more do not fit the context of "
                f"{self.config.context_length} tokens; shorten the prompt or ask for fewer."
            )
        if sequence.total > self.cache.num_slots:
            raise PromptTooLong(
                f"The request needs KV for {sequence.total} tokens and the pool holds {self.cache.num_slots}; "
                "shorten it or give the runtime a larger max_total_tokens."
            )

    def append(self, sequence: Sequence, token_ids: list[int], logits_from: int | None = None) -> None:
        """Sampled or forced tokens, computed in the next steps. Logits come from position `logits_from` on; by default
        for the last token only. ValueError beyond the sequence's `token_limit`."""
        if len(sequence.token_ids) + len(token_ids) > sequence.token_limit:
            raise ValueError(
                f"{len(token_ids)} tokens after {len(sequence.token_ids)} pass the limit of {sequence.token_limit}; "
                "finish the sequence when its token_limit is reached."
            )
        sequence.extend(token_ids, logits_from)

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Drop the tokens from position `length` on (drafts that were not accepted), between two steps."""
        assert self._in_flight is None
        assert sequence.prompt_length <= length <= len(sequence.token_ids)
        sequence.cut(length)

    def spare_rows(self) -> int:
        """Slots that the guesses of a running sequence may take, when all others take as many, without anything that
        runs or is admitted next being the poorer."""
        reserve = self.config.decode_reserve * (len(self.running) + 1)
        return max(0, self.cache.available - reserve) // max(1, len(self.running))

    # -- what goes out

    def abort(self, sequence: Sequence) -> None:
        """In any phase, even while its step runs; frees within the call. What was computed stays cached. Idempotent."""
        if sequence.state is State.FINISHED:
            return
        self.counters.aborted += 1
        self._end(sequence)

    def finish(self, sequence: Sequence, *, dead: bool = False) -> None:
        """Publish what is computed; the lock goes to the sequence's lease, if it has one, else away. `dead`: nobody
        will ask for what it added to its prefix, so the lease does not move and the addition is evicted first."""
        assert sequence.state is not State.FINISHED, "a sequence is finished once"
        self._end(sequence, None if dead else sequence.lease, dead_from=sequence.cached_tokens if dead else None)

    def _end(self, sequence: Sequence, lease: Lease | None = None, dead_from: int | None = None) -> None:
        if sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence, lease, dead_from)
        sequence.state = State.FINISHED

    def _release(self, sequence: Sequence, lease: Lease | None = None, dead_from: int | None = None) -> None:
        assert sequence.row is not None
        computed = min(sequence.computed, len(sequence.token_ids))
        self.cache.release(sequence.row, sequence.key(), computed, lease, dead_from)
        sequence.row = None
        self._forget_paths()
        self.waiting.overtake(sequence, max(0, sequence.computed - sequence.prompt_length))

    def _forget_paths(self) -> None:
        """The tree has moved under a running sequence, or their set changes."""
        self._laid_out, self._decodes = [], None

    # -- a step

    def has_work(self) -> bool:
        """Whether `schedule` may have something to compute, now or once running sequences are appended to."""
        return bool(self.running or len(self.waiting))

    def schedule(self) -> ScheduledStep | None:
        """The next step; None when nothing can be computed now. To be followed by `complete` or `fail`."""
        assert self._in_flight is None, "the step before must be completed or failed first"
        self._make_room()
        chunks = self._running_chunks()
        self._admit(chunks)
        if not chunks:
            return None
        self._in_flight = step = self._build(chunks)
        self._clock += len(step.batch.tokens)
        return step

    def complete(self, step: ScheduledStep) -> None:
        """The forward pass ran: what it computed can be read and is published."""
        assert step is self._in_flight
        self._in_flight = None
        self.cache.settle()
        self.counters.steps += 1
        self.counters.computed_tokens += len(step.batch.tokens)
        for sequence, start, end in step.chunks:
            if sequence.row is None:
                continue  # aborted meanwhile
            sequence.computed = end
            if sequence.wanted < end:
                sequence.wanted = end
            if start < sequence.prompt_length <= end:
                self.cache.publish(sequence.row, sequence.key(), sequence.prompt_length)
                self._forget_paths()

    def fail(self, step: ScheduledStep) -> None:
        """The forward pass raised: nothing of it may be read. Its sequences are finished, others go on."""
        assert step is self._in_flight
        self._in_flight = None
        for sequence, _, _ in step.chunks:
            if sequence.row is not None:
                self.counters.failed += 1
                self._end(sequence)
        for sequence in self.running.copy():
            if sequence.row is not None and self.cache.relies_on_flight(sequence.row):
                self._preempt(sequence)  # admitted with its group, to begin in a later step
        self.cache.discard_in_flight()

    # -- room for those that run

    def _make_room(self) -> None:
        """Slots for every entry that running sequences have yet to compute, the first in line served first."""
        for sequence in self.running.copy():
            if sequence.row is not None and sequence.total > sequence.row.allocated:
                self._grow(sequence)

    def _grow(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        assert sequence.total <= self.cache.num_slots, "a sequence at its token_limit must be finished"
        missing = sequence.total - sequence.row.allocated
        spare = min(self._spare_run(), sequence.token_limit - sequence.total)
        while not self.cache.grow(sequence.row, missing, spare):
            if self._reclaim_spare() or self.cache.revoke_lease():
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return

    def _spare_run(self) -> int:
        """Slots to take ahead of need. Few where free ones are scarce: else cached prefixes would go for slots that a
        short answer never uses."""
        run = self.config.growth_run
        is_roomy = self.cache.slots.free_count >= run * len(self.running)
        return run if is_roomy else min(run, self.config.decode_reserve)

    def _reclaim_spare(self) -> bool:
        """Take back slots that rows took ahead of need."""
        before = self.cache.held
        for sequence in self.running:
            assert sequence.row is not None
            self.cache.shrink(sequence.row, sequence.total)
        return self.cache.held < before

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the front of the line; what it has computed stays in the tree as long as nobody needs the slots."""
        self.counters.preemptions += 1
        self.running.remove(sequence)
        self._release(sequence)
        sequence.state, sequence.computed = State.PREEMPTED, 0
        self.waiting.resume(sequence)

    # -- choosing

    def _running_chunks(self) -> list[Chunk]:
        """Single tokens first, so that no decode waits for a long extend."""
        chunks, longer = [], []
        for sequence in self.running:
            left = sequence.total - sequence.computed
            if left == 1:
                chunks.append(self._chunk(sequence, sequence.total))
            elif left > 0:
                longer.append(sequence)
        budget = self.config.step_tokens - len(chunks)
        longer.sort(key=lambda sequence: sequence.computed < sequence.prompt_length)  # then decodes with guesses
        for sequence in longer[:budget]:
            chunk = self._chunk(sequence, sequence.computed + budget)
            chunks.append(chunk)
            budget -= chunk.end - chunk.start
            if budget == 0:
                break
        return chunks

    def _chunk(self, sequence: Sequence, limit: int) -> Chunk:
        """The next entries, below `limit`."""
        assert sequence.row is not None
        end = min(sequence.total, limit)
        if sequence.computed < sequence.prompt_length:  # no more than the prompt was promised
            self.cache.advance(sequence.row, end)
        return Chunk(sequence, sequence.computed, end)

    def _build(self, chunks: list[Chunk]) -> ScheduledStep:
        if self._decodes is not None and (step := self._decodes.follow(chunks)) is not None:
            return step
        step = self._build_anew(chunks)
        is_decode = len(step.outputs) == len(chunks) and all(chunk.is_decode for chunk in chunks)
        self._decodes = DecodeSteps(step, chunks) if is_decode else None
        return step

    def _build_anew(self, chunks: list[Chunk]) -> ScheduledStep:
        rule = self.config.cascade
        if rule is None:
            return build_step(chunks)
        taken = [chunk for chunk in chunks if rule.takes(chunk.end - chunk.start)]
        if len(taken) < 2:
            return build_step(chunks)
        sequences = [chunk.sequence for chunk in taken]
        if sequences != self._laid_out:
            self._layout, self._laid_out, self._shared_rows = lay_out(taken), sequences, []
        ordered = [taken[index] for index in self._layout.order]
        rows = [chunk.end - chunk.start for chunk in ordered]
        if rows != self._shared_rows:
            self._shared, self._shared_rows = shared_parts(rows, self._layout.common, rule), rows
        if len(taken) < len(chunks):
            ordered += [chunk for chunk in chunks if not rule.takes(chunk.end - chunk.start)]
        return build_step(ordered, self._shared)

    # -- admitting

    def _admit(self, chunks: list[Chunk]) -> None:
        if not len(self.waiting):
            return
        budget = self.config.step_tokens - sum(chunk.end - chunk.start for chunk in chunks)
        joint: Entry | None = None  # the group being admitted whole
        if budget <= 0:
            return
        for sequence in self.waiting.candidates():
            is_joint = joint is not None and sequence.entry is joint
            if len(self.running) >= self.config.max_running or (budget <= 0 and not is_joint):
                return
            joint = sequence.entry
            outcome = self._try(sequence)
            if outcome is _Admission.NO_ROOM:
                return
            if outcome is _Admission.ADMITTED and budget > 0:
                chunk = self._chunk(sequence, sequence.computed + budget)
                chunks.append(chunk)
                budget -= chunk.end - chunk.start

    def _try(self, sequence: Sequence) -> _Admission:
        """Match, lock, reserve, allocate, promise.

        A follower waits no longer than its leader's own extend takes: leaders run before anything is admitted, so once
        a row is left for a follower, the tokens it shares are computed, by this step at the latest.
        """
        while True:
            match = self._match(sequence)
            if match is not None and match.promised:
                return _Admission.WAITS_FOR_LEADER
            row = self._open_row(sequence, match)
            if row is not None:
                self._start(sequence, row)
                return _Admission.ADMITTED
            if self.running or not self.cache.revoke_lease():
                return _Admission.NO_ROOM

    def _match(self, sequence: Sequence) -> Match | None:
        if not sequence.use_cache:
            return None
        return self.cache.match(sequence.namespace, sequence.key(), sequence.cacheable)

    def _open_row(self, sequence: Sequence, match: Match | None) -> Row | None:
        missing = sequence.total - (0 if match is None else match.length)
        keep_free = self.config.decode_reserve * len(self.running)
        first = not sequence.admitted_before
        return self.cache.open_row(
            sequence.namespace, match, missing, keep_free=keep_free, hit=first, priority=sequence.priority
        )

    def _start(self, sequence: Sequence, row: Row) -> None:
        self.waiting.remove(sequence)
        cached = row.shared
        if sequence.use_cache:
            loaded = self.cache.load(row, sequence.namespace, sequence.key(), sequence.cacheable)
            cached += sum(loaded)
            if not sequence.admitted_before:
                sequence.loaded_tokens = loaded
        if not sequence.admitted_before:
            sequence.cached_tokens = cached
            self.cache.counters.queried += sequence.prompt_length
            self.cache.counters.hit += cached
        sequence.row, sequence.computed, sequence.state = row, cached, State.RUNNING
        self.waiting.overtake(sequence, sequence.total - cached)
        insort(self.running, sequence, key=service_order)
        self.cache.promise(row, sequence.key(), sequence.prompt_length)
        self._forget_paths()
