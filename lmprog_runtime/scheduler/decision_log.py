"""What a scheduler was told and what it decided, as plain JSON lines, and the replay that must decide the same.

A log holds every input in order (requests, tokens, aborts, ends, hints on leases, flushes) and every step's chunks. It
has token ids, so treat it like the prompts themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from lmprog_runtime.cache.config import CacheConfig
from lmprog_runtime.cache.lease import Lease
from lmprog_runtime.cache.manager import CacheManager
from lmprog_runtime.scheduler.batch import ScheduledStep
from lmprog_runtime.scheduler.config import SchedulerConfig
from lmprog_runtime.scheduler.loop import Scheduler
from lmprog_runtime.scheduler.sequence import Sequence
from lmprog_runtime.scheduler.trie import TokenTree

Write = Callable[[list[Any]], None]
"""Takes one entry: a name and plain values."""


def to_lines(write_line: Callable[[str], object]) -> Write:
    """Entries as JSON lines, for a file's `write`."""
    return lambda entry: (write_line(json.dumps(entry, separators=(",", ":")) + "\n"), None)[1]


class RecordedCache(CacheManager):
    """A cache that logs what streams ask of it."""

    def __init__(self, config: CacheConfig, write: Write) -> None:
        super().__init__(config)
        self.write = write
        self._numbers: WeakKeyDictionary[Lease, int] = WeakKeyDictionary()
        self._count = count()

    def number_of(self, lease: Lease) -> int:
        if lease not in self._numbers:
            self._numbers[lease] = next(self._count)
        return self._numbers[lease]

    def fork_lease(self, parent: Lease) -> Lease:
        child = super().fork_lease(parent)
        self.write(["fork_lease", self.number_of(parent), self.number_of(child)])
        return child

    def will_return(self, lease: Lease) -> None:
        self.write(["will_return", self.number_of(lease)])
        super().will_return(lease)

    def close_lease(self, lease: Lease, dead_from: int | None = None) -> None:
        self.write(["close_lease", self.number_of(lease), dead_from])
        super().close_lease(lease, dead_from)

    def flush(self) -> int:
        self.write(["flush"])
        return super().flush()


class RecordedScheduler(Scheduler):
    """A scheduler that logs its inputs and decisions. Its cache must be a RecordedCache."""

    def __init__(self, config: SchedulerConfig, cache: RecordedCache) -> None:
        super().__init__(config, cache)
        self._write, self._number_of = cache.write, cache.number_of

    def add(self, sequences: Sequence | list[Sequence]) -> None:
        group = sequences if isinstance(sequences, list) else [sequences]
        super().add(sequences)
        self._write(["add", [self._describe(sequence) for sequence in group]])

    def _describe(self, sequence: Sequence) -> dict[str, Any]:
        return {
            "token_ids": list(sequence.token_ids),
            "prompt_length": sequence.prompt_length,
            "namespace": list(sequence.namespace),
            "max_new_tokens": sequence.max_new_tokens,
            "priority": sequence.priority,
            "use_cache": sequence.use_cache,
            "lease": None if sequence.lease is None else self._number_of(sequence.lease),
            "logits_from": sequence.logits_from,
            "tree": sequence.tree,
        }

    def append(self, sequence: Sequence, token_ids: list[int], logits_from: int | None = None) -> None:
        super().append(sequence, token_ids, logits_from)
        self._write(["append", sequence.arrival, token_ids, logits_from])

    def rewind(self, sequence: Sequence, length: int) -> None:
        super().rewind(sequence, length)
        self._write(["rewind", sequence.arrival, length])

    def abort(self, sequence: Sequence) -> None:
        super().abort(sequence)
        self._write(["abort", sequence.arrival])

    def finish(self, sequence: Sequence, *, dead: bool = False) -> None:
        super().finish(sequence, dead=dead)
        self._write(["finish", sequence.arrival, dead])

    def schedule(self) -> ScheduledStep | None:
        step = super().schedule()
        self._write(["schedule", self._decisions(step)])
        return step

    def _decisions(self, step: ScheduledStep | None) -> list[list[int]] | None:
        return None if step is None else [[chunk.sequence.arrival, chunk.start, chunk.end] for chunk in step.chunks]

    def complete(self, step: ScheduledStep) -> None:
        super().complete(step)
        self._write(["complete"])

    def fail(self, step: ScheduledStep) -> None:
        super().fail(step)
        self._write(["fail"])


class Diverged(AssertionError):
    """A replay decided otherwise than the log says: the settings differ, or the scheduler is not deterministic."""


def replay(lines: Iterable[str], cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> Scheduler:
    """Do again what a log says. Returns the scheduler in its last state; Diverged at the first other decision."""
    player = _Player(cache_config, scheduler_config)
    for number, line in enumerate(lines, start=1):
        player.play(number, json.loads(line))
    return player.scheduler


class _Player:
    def __init__(self, cache_config: CacheConfig, scheduler_config: SchedulerConfig) -> None:
        self.cache = CacheManager(cache_config)
        self.scheduler = Scheduler(scheduler_config, self.cache)
        self._sequences: dict[int, Sequence] = {}  # by order of arrival, which is their name in the log
        self._leases: dict[int, Lease] = {}
        self._step: ScheduledStep | None = None

    def play(self, number: int, entry: list[Any]) -> None:
        name, *values = entry
        if name == "schedule":
            self._schedule(number, values[0])
        elif name == "add":
            self._add(values[0])
        elif name in ("complete", "fail"):
            assert self._step is not None
            getattr(self.scheduler, name)(self._step)
        elif name in ("append", "rewind", "abort"):
            getattr(self.scheduler, name)(self._sequences[values[0]], *values[1:])
        elif name == "finish":
            self.scheduler.finish(self._sequences[values[0]], dead=values[1])
        elif name == "fork_lease":
            self._leases[values[1]] = self.cache.fork_lease(self._lease(values[0]))
        elif name in ("will_return", "close_lease"):
            getattr(self.cache, name)(self._lease(values[0]), *values[1:])
        elif name == "flush":
            self.cache.flush()
        else:
            raise ValueError(f"Line {number} of the log has an unknown entry {name!r}.")

    def _add(self, described: list[dict[str, Any]]) -> None:
        group = []
        for fields in described:
            tree, lease = fields.pop("tree"), fields.pop("lease")
            fields["namespace"] = tuple(fields["namespace"])
            fields["lease"] = None if lease is None else self._lease(lease)
            group.append(Sequence(**fields, tree=None if tree is None else TokenTree(*map(tuple, tree))))
        self.scheduler.add(group)
        self._sequences.update({sequence.arrival: sequence for sequence in group})

    def _lease(self, number: int) -> Lease:
        if number not in self._leases:
            self._leases[number] = self.cache.open_lease()
        return self._leases[number]

    def _schedule(self, number: int, logged: list[list[int]] | None) -> None:
        step = self._step = self.scheduler.schedule()
        decided = None if step is None else [[c.sequence.arrival, c.start, c.end] for c in step.chunks]
        if decided != logged:
            raise Diverged(f"Line {number}: the log has {logged} and the replay decided {decided}.")
