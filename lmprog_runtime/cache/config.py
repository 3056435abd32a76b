"""Settings of the cache layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    num_slots: int  # slots of the KV pool, one per token
    page_size: int = 1  # match, publish and lock whole pages of this many tokens
    policy: str = "lru"  # which leaf is evicted first: lru, lfu, slru, fifo, priority or cost
    lease_share: float = 0.5  # most of the pool that leases of live streams may lock
    enabled: bool = True  # False: nothing is matched or published (disable_radix_cache)
    debug_owners: bool = False  # name both owners on a double free; a few microseconds per call

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(f"page_size is {self.page_size}; it must be at least 1.")
        if not 0 <= self.lease_share <= 1:
            raise ValueError(f"lease_share is {self.lease_share}; it is a share of the pool between 0 and 1.")
        if self.num_slots < self.page_size:
            raise ValueError(
                f"num_slots is {self.num_slots}, less than one page of {self.page_size}; give the pool more slots."
            )
