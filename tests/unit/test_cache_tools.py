"""What users and operators can ask of the cache: eviction order, hints, leases, dumps, explanations, events."""

from __future__ import annotations

import json

import pytest

from lmprog_runtime.cache import CacheConfig, CacheManager, Lease
from lmprog_runtime.cache import keys as token_keys
from lmprog_runtime.cache.events import CacheEvent, prefix_hash
from lmprog_runtime.cache.node import Namespace

SPACE: Namespace = ("model", None, None)


def make(num_slots: int = 64, **config: object) -> CacheManager:
    return CacheManager(CacheConfig(num_slots=num_slots, debug_owners=True, **config))  # type: ignore[arg-type]


def use(
    cache: CacheManager, tokens: list[int], *, space: Namespace = SPACE, lease: Lease | None = None,
    priority: int = 0, dead_from: int | None = None,
) -> int:  # fmt: skip
    """One request from match to release; returns how many tokens it found."""
    key = token_keys.encode(tokens)
    match = cache.match(space, key, len(tokens) - 1)
    found = 0 if match is None else match.length
    row = cache.open_row(space, match, len(tokens) - found, keep_free=0, hit=True, priority=priority)
    assert row is not None
    cache.release(row, key, len(tokens), lease, dead_from)
    cache.check()
    return found


def cached(cache: CacheManager, tokens: list[int], space: Namespace = SPACE) -> int:
    match = cache.match(space, token_keys.encode(tokens), len(tokens))
    return 0 if match is None else match.length


A, B, C = [1] * 10, [2] * 10, [3] * 10


def test_least_recent_leaf_goes_first_and_only_as_much_as_needed() -> None:
    cache = make()
    for tokens in (A, B):
        use(cache, tokens)
    assert use(cache, A[:5] + C[:1]) == 5  # refreshes the part of A that it matched, and not the rest
    assert cache.evict(3) == 3
    assert (cached(cache, A), cached(cache, B)) == (7, 10)
    assert cache.evict(4) == 4
    assert (cached(cache, A), cached(cache, B)) == (5, 8)
    assert cache.evict(9) == 9
    assert (cached(cache, A), cached(cache, B), cached(cache, [*A[:5], 3])) == (5, 0, 5)


@pytest.mark.parametrize(
    ("policy", "survivor"),
    [("lru", C), ("lfu", A), ("slru", A), ("fifo", C), ("priority", B), ("cost", A)],
)
def test_each_policy_keeps_what_it_promises(policy: str, survivor: list[int]) -> None:
    cache = make(policy=policy)
    for tokens, times, priority in ((A, 3, 0), (B, 1, 5), (C, 1, 0)):
        for _ in range(times):
            use(cache, tokens, priority=priority)
    cache.evict(20)
    kept = [cached(cache, tokens) >= 9 for tokens in (A, B, C)]  # a repeated prompt's last token is not matched again
    assert kept == [tokens is survivor for tokens in (A, B, C)]


def test_old_fame_fades_under_cost_and_slru_but_not_under_lfu() -> None:
    outcome = {}
    for policy in ("cost", "slru", "lfu"):
        cache = make(num_slots=40, policy=policy)
        for _ in range(5):
            use(cache, A)
        for fresh in range(100, 160):
            use(cache, [fresh] * 12)
        outcome[policy] = cached(cache, A)
    assert outcome == {"cost": 0, "slru": 0, "lfu": 9}


def test_the_protected_segment_outlives_a_flood_that_is_smaller_than_the_pool() -> None:
    cache = make(num_slots=40, policy="slru")
    for _ in range(2):
        use(cache, A)
    for fresh in range(100, 104):
        use(cache, [fresh] * 12)
    assert cached(cache, A) == 9


def test_unknown_policy_is_refused_with_a_guess() -> None:
    with pytest.raises(ValueError, match="no eviction policy 'lruu'; did you mean 'lru'"):
        make(policy="lruu")


def test_dead_tokens_go_first_and_come_back_to_life_when_used() -> None:
    cache = make()
    use(cache, A)
    use(cache, A + B, dead_from=10)
    use(cache, C)
    assert cache.evict(4) == 4
    assert (cached(cache, A + B), cached(cache, C)) == (16, 10)
    assert use(cache, A + B[:7]) == 16  # used again: most recent now
    cache.evict(10)
    assert (cached(cache, A + B[:7]), cached(cache, C)) == (17, 0)


def test_burying_stops_where_others_go_on() -> None:
    cache = make()
    lease = cache.open_lease()
    use(cache, A + B, lease=lease)
    use(cache, A + C)
    cache.close_lease(lease, dead_from=0)
    cache.evict(10)
    assert (cached(cache, A + B), cached(cache, A + C)) == (10, 20)
    cache.evict(5)
    assert cached(cache, A + C) == 15  # the shared part was not marked


def test_streams_that_will_return_are_evicted_last() -> None:
    cache = make()
    lease = cache.open_lease()
    use(cache, A, lease=lease)
    cache.will_return(lease)
    use(cache, B)
    use(cache, C)
    assert cache.tree.protected == 0
    cache.evict(20)
    assert (cached(cache, A), cached(cache, B), cached(cache, C)) == (10, 0, 0)
    assert use(cache, A + B, lease=lease) == 10
    assert (lease.is_soft, cache.tree.leased) == (False, 20)
    cache.will_return(lease)
    cache.flush()
    assert cache.slots.free_count == 64
    cache.close_lease(lease)
    cache.check()


def test_a_forked_lease_holds_on_when_its_parent_ends() -> None:
    cache = make()
    parent = cache.open_lease()
    use(cache, A, lease=parent)
    child = cache.fork_lease(parent)
    cache.close_lease(parent)
    assert cache.flush() == 0
    cache.close_lease(child)
    assert cache.flush() == 10
    late = cache.fork_lease(parent)
    assert late.node is None


def test_leases_cannot_pin_more_than_their_share() -> None:
    cache = make(num_slots=64, lease_share=0.5)
    leases = [cache.open_lease() for _ in range(6)]
    for number, lease in enumerate(leases):
        use(cache, [number] * 10, lease=lease)
    assert [lease.node is not None for lease in leases] == [False] * 3 + [True] * 3
    assert cache.tree.leased == 30
    assert cache.leases.revoked == 3
    for lease in leases:
        cache.close_lease(lease)
    whole = cache.open_lease()
    use(cache, [9] * 40, lease=whole)
    assert whole.node is None
    with pytest.raises(ValueError, match=r"lease_share is 1\.5"):
        make(lease_share=1.5)


def test_dump_is_json_at_any_depth_and_pretty_names_what_matters() -> None:
    cache = make(num_slots=3000)
    tokens = list(range(1999))
    row = cache.open_row(SPACE, None, 1999, keep_free=0, hit=True)
    assert row is not None
    for end in range(1, 2000):
        cache.publish(row, token_keys.encode(tokens), end)
    cache.release(row, token_keys.encode(tokens), 1999)
    dumped = json.loads(json.dumps(cache.dump()))
    nodes = dumped["namespaces"][0]["nodes"]
    assert sum(len(node["token_ids"]) for node in nodes) == dumped["evictable"] == 1999
    assert [node["parent"] for node in nodes] == [None, *(node["id"] for node in nodes[:-1])]
    text = cache.pretty()
    assert "1001 free, 1999 evictable" in text
    assert "namespace ('model', None, None)" in text


def test_explain_says_why_a_prompt_is_not_a_hit() -> None:
    cache = make()
    salted: Namespace = ("model", None, "salt")
    use(cache, A + B)
    use(cache, C, space=salted)
    assert cache.explain(SPACE, A + B).reason == "all cached"
    assert str(cache.explain(SPACE, A + B)).startswith("19 of 20 tokens are cached: all of it that can be")
    longer = cache.explain(SPACE, [*A, *B, 99])
    assert (longer.reason, longer.matched, longer.total) == ("last token", 20, 21)
    assert "all but the last one, which is always computed and is not in the cache" in str(longer)
    fork = cache.explain(SPACE, A + C)
    assert (fork.reason, fork.matched, fork.known_next, fork.path) == ("never seen", 10, (2,), ((0, 10, 0),))
    assert cache.explain(SPACE, C).namespace == salted
    assert str(cache.explain(SPACE, C)) == f"0 of 10 tokens are cached: namespace {salted} has more, and is not shared."
    cache.evict(5)
    trimmed = cache.explain(SPACE, A + B)
    assert (trimmed.reason, trimmed.matched) == ("evicted", 15)
    cache.flush()
    assert cache.explain(SPACE, A + B).reason == "evicted"
    assert cache.explain(SPACE, A + B).matched == 0
    assert cache.explain(SPACE, [7, 8, 9]).reason == "never seen"
    key = token_keys.encode(B)
    row = cache.open_row(SPACE, None, 10, keep_free=0, hit=True)
    assert row is not None
    cache.promise(row, key, 10)
    assert cache.explain(SPACE, B).reason == "being computed"
    cache.release(row, key, 0)
    assert make(enabled=False).explain(SPACE, A).reason == "cache off"


def test_events_name_prefixes_independently_of_nodes() -> None:
    events: list[CacheEvent] = []
    cache = CacheManager(CacheConfig(num_slots=64), on_event=events.append)
    use(cache, A + B)
    use(cache, A + C)
    stored = [(event.kind, event.start, event.token_ids, event.parent, event.hash) for event in events]
    assert stored == [
        ("stored", 0, tuple(A + B), prefix_hash(SPACE, b""), prefix_hash(SPACE, token_keys.encode(A + B))),
        (
            "stored",
            10,
            tuple(C),
            prefix_hash(SPACE, token_keys.encode(A)),
            prefix_hash(SPACE, token_keys.encode(A + C)),
        ),
    ]
    cache.evict(3)
    assert (events[-1].kind, events[-1].start, events[-1].token_ids) == ("removed", 17, (2, 2, 2))
    lease = cache.open_lease()
    use(cache, A, lease=lease)
    cache.flush()
    assert {event.kind for event in events[3:]} == {"removed"}
    cache.close_lease(lease)
    cache.flush()
    assert events[-1].kind == "cleared"
    with pytest.raises(TypeError, match="strings, integers and None"):
        prefix_hash(("model", object()), b"")


def test_double_free_names_both_owners() -> None:
    cache = make()
    slots = cache.slots.allocate(4, "row 1")
    with pytest.raises(AssertionError, match="row 2 frees slot 0 of row 1"):
        cache.slots.free(slots, "row 2")
    cache.slots.free(slots, "row 1")
    with pytest.raises(AssertionError, match="row 2 frees slot 0, which row 1 freed before"):
        cache.slots.free(slots, "row 2")


def test_corruption_is_reported_whole_with_the_tree() -> None:
    cache = make()
    use(cache, A)
    cache.tree.evictable += 1
    next(cache.tree.nodes()).locks = 1
    with pytest.raises(AssertionError) as caught:
        cache.check()
    text = str(caught.value)
    assert "evictable is kept as 11 and counted as 0" in text
    assert "has 1 locks" in text
    assert "[0, 10) 1 1 1" in text


def test_slots_come_in_few_runs_and_continue_the_last_one() -> None:
    slots = make(num_slots=32).slots
    first, middle, last = (slots.allocate(4, "row") for _ in range(3))
    slots.free(middle, "row")
    assert slots.allocate(2, "row", after=int(last[-1])).tolist() == [12, 13]  # not from the hole
    assert slots.allocate(3, "row").tolist() == [4, 5, 6]  # the smallest that holds it
    assert slots.allocate(19, "row", after=int(first[-1])).tolist() == [*range(14, 32), 7]  # all that is left
    assert (slots.free_count, slots.extents()) == (0, {})
