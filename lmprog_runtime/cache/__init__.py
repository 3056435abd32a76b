"""The radix cache: which prefixes have their KV in the pool, and who may use which slot. No torch."""

from lmprog_runtime.cache.config import CacheConfig
from lmprog_runtime.cache.invariants import CacheCorrupt
from lmprog_runtime.cache.lease import Lease
from lmprog_runtime.cache.manager import CacheCounters, CacheManager
from lmprog_runtime.cache.radix_tree import Match
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.tiers import KvStore, TierConfig, Tiers

__all__ = [
    "CacheConfig",
    "CacheCorrupt",
    "CacheCounters",
    "CacheManager",
    "KvStore",
    "Lease",
    "Match",
    "Row",
    "TierConfig",
    "Tiers",
]
