"""What users can ask a running cache. Every question is answered on the engine thread, between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmprog_runtime.cache.report import Explanation
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
        """How much of a prompt (text, or token ids) is cached, along which nodes, and why not more."""
        tokenizer = self._engine.tokenizer
        ids = [*tokenizer.bos_ids, *tokenizer.encode(prompt)] if isinstance(prompt, str) else list(prompt)
        namespace = self._engine.namespace(salt)
        return self._engine.call(lambda: self._engine.cache.explain(namespace, ids)).result()

    def statistics(self) -> dict[str, Any]:
        """Counters and gauges, in tokens."""
        return self._engine.call(self._read).result()

    def check(self) -> None:
        """Recompute the accounting of every slot; CacheCorrupt when it does not add up."""
        self._engine.call(self._engine.cache.check).result()

    def _read(self) -> dict[str, Any]:
        cache = self._engine.cache
        counters = cache.counters
        return {
            "total_slots": cache.num_slots,
            "used_slots": cache.num_slots - cache.slots.free_count,
            "evictable_tokens": cache.tree.evictable,
            "protected_tokens": cache.tree.protected,
            "queried_tokens": counters.queried,
            "hit_tokens": counters.hit,
            "evicted_tokens": counters.evicted,
            "cache_hit_rate": counters.hit / counters.queried if counters.queried else 0.0,
        }
