"""Random operations on the cache against a dict of prefixes: what must be found, with which slots, and what may go."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from lmprog_runtime.cache import CacheConfig, CacheManager, Lease, Row
from lmprog_runtime.cache import keys as token_keys
from lmprog_runtime.cache.events import CacheEvent, prefix_hash
from lmprog_runtime.cache.node import Namespace

Prefix = tuple[Namespace, tuple[int, ...]]
NAMESPACES: list[Namespace] = [("m", None, None), ("m", None, ""), ("m", "a", None)]


@dataclass(eq=False)
class Live:
    namespace: Namespace
    tokens: list[int]
    row: Row
    computed: int

    @property
    def key(self) -> bytes:
        return token_keys.encode(self.tokens)


class Mirror:
    """What a router knows that only hears the events."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.prefixes: set[Prefix] = set()
        self._by_hash: dict[str, Prefix] = {prefix_hash(namespace, b""): (namespace, ()) for namespace in NAMESPACES}

    def note(self, event: CacheEvent) -> None:
        if event.kind == "cleared":
            self.prefixes.clear()
            return
        namespace, before = self._by_hash[event.parent]
        assert (namespace, len(before)) == (event.namespace, event.start)
        tokens = before + event.token_ids
        assert event.hash == prefix_hash(namespace, token_keys.encode(tokens))
        ends = range(event.start + self.page_size, len(tokens) + 1, self.page_size)
        piece = {(namespace, tokens[:end]) for end in ends}
        if event.kind == "stored":
            assert not piece & self.prefixes
            self.prefixes |= piece
            self._by_hash.update({prefix_hash(namespace, token_keys.encode(p[1])): p for p in piece})
        else:
            assert piece <= self.prefixes
            self.prefixes -= piece


class Model:
    """Drives a cache as a scheduler would, one whole "forward pass" at a time, and keeps the truth beside it."""

    def __init__(self, seed: int, num_slots: int, page_size: int, policy: str = "lru") -> None:
        self.random = random.Random(seed)
        self.mirror = Mirror(page_size)
        config = CacheConfig(num_slots=num_slots, page_size=page_size, policy=policy, debug_owners=True)
        self.cache = CacheManager(config, on_event=self.mirror.note)
        self.written: dict[int, Prefix] = {}  # slot -> the prefix whose last token's KV it holds
        self.known: set[Prefix] = set()  # whole pages that a match must find
        self.live: list[Live] = []
        self.leases: list[tuple[Lease, Namespace, list[int]]] = []

    def key(self) -> tuple[Namespace, list[int]]:
        base = [token // 7 % 3 for token in range(40)]
        cut = self.random.randrange(len(base))
        return self.random.choice(NAMESPACES), base[:cut] + self.random.choices(range(3), k=self.random.randrange(1, 9))

    # operations

    def open(self) -> None:
        namespace, tokens = self.key()
        key = token_keys.encode(tokens)
        match = self.cache.match(namespace, key, len(tokens) - 1)
        found = 0 if match is None else match.length
        assert found == self.longest(namespace, tokens[:-1])
        before = self.snapshot()
        row = self.cache.open_row(namespace, match, len(tokens) - found, keep_free=0, hit=True)
        self.account_evictions(before)
        if row is None:
            return
        live = Live(namespace, tokens, row, found)
        self.expect_slots(live)
        self.live.append(live)
        if self.random.random() < 0.7:
            self.cache.promise(row, key, len(tokens))

    def forward(self) -> None:
        """One step over some rows; one in ten raises."""
        chosen = [live for live in self.live if live.computed < len(live.tokens) and self.random.random() < 0.6]
        ends = {live: self.random.randrange(live.computed + 1, len(live.tokens) + 1) for live in chosen}
        for live, end in ends.items():
            self.cache.advance(live.row, end)
        if chosen and self.random.random() < 0.1:
            before = self.snapshot()
            for live in chosen:
                self.release(live)
            self.cache.discard_in_flight()
            # what a row had computed, and a twin in the failing step was computing again, may be lost with the twin
            self.known = {prefix for prefix in self.known if self.in_tree(prefix)}
            assert before <= self.known
            return
        for live, end in ends.items():
            for position in range(live.computed, end):
                self.written[int(live.row.slots[position])] = (live.namespace, tuple(live.tokens[: position + 1]))
            live.computed = end
        self.cache.settle()
        for live in chosen:
            self.note_known(live, min(live.computed, live.row.shared))

    def publish(self) -> None:
        for live in self.pick():
            self.cache.publish(live.row, live.key, live.computed)
            self.note_known(live, live.computed)
            self.expect_slots(live)

    def grow(self) -> None:
        for live in self.pick():
            if live.computed < len(live.tokens):
                continue
            count = self.random.randrange(1, 5)
            before = self.snapshot()
            missing = max(0, len(live.tokens) + count - live.row.allocated)
            if self.cache.grow(live.row, missing, self.random.randrange(4)):
                live.tokens += self.random.choices(range(3), k=count)
            self.account_evictions(before)

    def finish(self) -> None:
        for live in self.pick():
            self.release(live)

    def finish_to_lease(self) -> None:
        for live in self.pick():
            self.release(live, lease := self.cache.open_lease())
            self.keep(lease, live.namespace, live.tokens)

    def keep(self, lease: Lease, namespace: Namespace, tokens: list[int]) -> None:
        if lease.node is not None:  # else it passed the limit at once
            self.leases.append((lease, namespace, tokens[: lease.node.end]))

    def end_lease(self) -> None:
        if self.leases:
            lease, _, tokens = self.leases.pop(self.random.randrange(len(self.leases)))
            self.cache.close_lease(lease, self.random.choice([None, self.random.randrange(len(tokens) + 1)]))
            self.cache.close_lease(lease)

    def fork_lease(self) -> None:
        if self.leases:
            lease, namespace, tokens = self.random.choice(self.leases)
            self.keep(self.cache.fork_lease(lease), namespace, tokens)

    def soften(self) -> None:
        if self.leases:
            self.cache.will_return(self.random.choice(self.leases)[0])

    def revoke(self) -> None:
        self.cache.revoke_lease()

    def finish_dead(self) -> None:
        for live in self.pick():
            self.live.remove(live)
            self.cache.release(live.row, live.key, live.computed, dead_from=self.random.randrange(len(live.tokens)))
            self.note_known(live, live.computed)

    def shrink(self) -> None:
        for live in self.pick():
            self.cache.shrink(live.row, len(live.tokens))

    def evict(self) -> None:
        before, wanted = self.snapshot(), self.random.randrange(1, 20)
        possible = self.cache.tree.evictable
        freed = self.cache.evict(wanted)
        assert freed >= min(wanted, possible)
        assert freed < wanted + self.cache.page_size
        assert len(self.account_evictions(before)) * self.cache.page_size == freed

    def flush(self) -> None:
        before = self.snapshot()
        self.cache.flush()
        self.account_evictions(before)
        assert self.cache.tree.evictable == 0

    # the truth

    def release(self, live: Live, lease: Lease | None = None) -> None:
        self.live.remove(live)
        self.cache.release(live.row, live.key, live.computed, lease)
        self.note_known(live, live.computed)

    def note_known(self, live: Live, length: int) -> None:
        page = self.cache.page_size
        for end in range(page, length + 1, page):
            self.known.add((live.namespace, tuple(live.tokens[:end])))

    def longest(self, namespace: Namespace, tokens: list[int]) -> int:
        page = self.cache.page_size
        end = 0
        while end + page <= len(tokens) and (namespace, tuple(tokens[: end + page])) in self.known:
            end += page
        return end

    def snapshot(self) -> set[Prefix]:
        return {prefix for prefix in self.known if self.in_tree(prefix)}

    def in_tree(self, prefix: Prefix) -> bool:
        namespace, tokens = prefix
        match = self.cache.tree.match(namespace, token_keys.encode(tokens))
        return match is not None and match.length == len(tokens)

    def account_evictions(self, before: set[Prefix]) -> set[Prefix]:
        gone = before - self.snapshot()
        for live in self.live:
            kept = {
                (live.namespace, tuple(live.tokens[:end])) for end in range(1, min(live.computed, live.row.shared) + 1)
            }
            assert not gone & kept
        for lease, namespace, tokens in self.leases:
            if lease.node is not None and not lease.is_soft:
                assert not gone & {(namespace, tuple(tokens[:end])) for end in range(1, len(tokens) + 1)}
        self.known -= gone
        return gone

    def expect_slots(self, live: Live) -> None:
        for position in range(live.computed):
            expected = (live.namespace, tuple(live.tokens[: position + 1]))
            assert self.written[int(live.row.slots[position])] == expected

    def pick(self) -> list[Live]:
        return [self.random.choice(self.live)] if self.live else []


OPERATIONS = {
    Model.open: 6,
    Model.forward: 6,
    Model.publish: 2,
    Model.grow: 3,
    Model.finish: 2,
    Model.finish_dead: 1,
    Model.finish_to_lease: 1,
    Model.end_lease: 1,
    Model.fork_lease: 0.5,
    Model.soften: 0.5,
    Model.revoke: 0.3,
    Model.shrink: 1,
    Model.evict: 1,
    Model.flush: 0.1,
}


@pytest.mark.parametrize(
    ("policy", "num_slots", "page_size", "steps"),
    [
        ("lru", 64, 1, 10_000),
        ("lru", 96, 4, 2000),
        ("lfu", 200, 1, 1000),
        ("slru", 64, 1, 1000),
        ("fifo", 64, 2, 1000),
        ("priority", 64, 1, 1000),
        ("cost", 64, 1, 1000),
    ],
)
def test_random_operations_agree_with_a_dict_of_prefixes(
    policy: str, num_slots: int, page_size: int, steps: int
) -> None:
    model = Model(steps + num_slots, num_slots, page_size, policy)
    for _ in range(steps):
        [operation] = model.random.choices(list(OPERATIONS), weights=list(OPERATIONS.values()))
        operation(model)
        model.cache.check()
        assert model.mirror.prefixes == model.known
    for live in model.live.copy():
        model.release(live)
    for lease, _, _ in model.leases:
        model.cache.close_lease(lease)
    model.cache.flush()
    model.cache.check()
    assert model.cache.slots.free_count == model.cache.num_slots
    assert not model.cache.tree.roots
    counters = model.cache.counters
    assert min(counters.evicted, counters.deduplicated, model.cache.leases.revoked) > 0


def test_freed_slots_are_few_runs_again() -> None:
    model = Model(3, 256, 1)
    for _ in range(500):
        [operation] = model.random.choices(list(OPERATIONS), weights=list(OPERATIONS.values()))
        operation(model)
    for live in model.live.copy():
        model.release(live)
    for lease, _, _ in model.leases:
        model.cache.close_lease(lease)
    model.cache.flush()
    assert model.cache.slots.extents() == {0: 256}
    assert np.array_equal(model.cache.slots.allocate(256, "test"), np.arange(256))
