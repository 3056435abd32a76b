"""What users can ask a running cache. Every question is answered on the engine thread, between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from lmprog_runtime.cache.events import Subscription
from lmprog_runtime.cache.report import Explanation, nodes, with_texts
from lmprog_runtime.engine import Engine


class CacheView:
    """The prefix cache of a runtime: `runtime.cache`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pretty(self) -> str:
        """The radix tree for people, one line per node."""
        return self._engine.call(self._engine.cache.pretty).result()

    def dump(self) -> dict[str, Any]:
        """The radix tree for programs: plain JSON types."""
        return self._engine.call(self._engine.cache.dump).result()

    def explain(self, prompt: str | Sequence[int], *, salt: str | None = None) -> Explanation:
        """How much of a prompt (text, or token ids) is cached, along which nodes, and why not more: the text around
        the first token that is not, and what the cache has there."""
        tokenizer = self._engine.tokenizer
        ids = [*tokenizer.bos_ids, *tokenizer.encode(prompt)] if isinstance(prompt, str) else list(prompt)
        namespace = self._engine.namespace(salt)
        found = self._engine.call(lambda: self._engine.cache.explain(namespace, ids)).result()
        return with_texts(found, ids, tokenizer.decode)

    def events(self) -> Subscription:
        """From now on, what is stored, removed and cleared, in order; `close()` it in the end. Whoever falls more than
        100,000 events behind loses the oldest and is told how many."""
        subscription = Subscription(self._unsubscribe)
        self._engine.call(lambda: self._engine.cache.subscribe(subscription.put)).result()
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        self._engine.call(lambda: self._engine.cache.unsubscribe(subscription.put)).result()

    def statistics(self) -> dict[str, Any]:
        """Counters and gauges, in tokens."""
        return self._engine.call(self.read).result()

    def check(self) -> None:
        """Recompute the accounting of every slot; CacheCorrupt when it does not add up."""
        self._engine.call(self._engine.cache.check).result()

    def read(self) -> dict[str, Any]:
        """`statistics` for callers on the engine thread."""
        cache = self._engine.cache
        counters = cache.counters
        lengths = [node.length for node in nodes(cache) if node.children or node.hits]
        slot_bytes = self._engine.executor.read_kv(np.zeros(1, np.int32)).shape[1]
        return {
            "total_nodes": sum(1 for _ in nodes(cache)),
            "shared_prefix_count": len(lengths),
            "shared_kv_bytes": sum(lengths) * slot_bytes,
            "total_slots": cache.num_slots,
            "used_slots": cache.num_slots - cache.slots.free_count,
            "evictable_tokens": cache.tree.evictable,
            "protected_tokens": cache.tree.protected,
            "queried_tokens": counters.queried,
            "hit_tokens": counters.hit,
            "evicted_tokens": counters.evicted,
            "cache_hit_rate": counters.hit / counters.queried if counters.queried else 0.0,
            **self._more(),
        }

    def _more(self) -> dict[str, Any]:
        """Of the tiers beyond the pool and of proof mode, where there are such."""
        tiers, verifier = self._engine.cache.tiers, self._engine.verifier
        found: dict[str, Any] = {}
        if tiers is not None:
            found["tiers"] = asdict(tiers.counters)
        if verifier is not None:
            found["verified"] = asdict(verifier.report)
        return found
