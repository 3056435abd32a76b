"""One unit of work for the scheduler: tokens to compute, and what it has come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from lmprog_runtime.cache import keys
from lmprog_runtime.cache.lease import Lease
from lmprog_runtime.cache.node import Namespace
from lmprog_runtime.cache.row import Row
from lmprog_runtime.cache.tiers import Loaded
from lmprog_runtime.scheduler.trie import TokenTree, TrieLayout, lay_out

if TYPE_CHECKING:
    from lmprog_runtime.scheduler.waiting import Entry


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again, ahead of those that never ran
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """`token_ids` grows through `Scheduler.append` only. Entries [0, len(token_ids)) are the sequence, and after them
    come the nodes of `tree`, if any: an entry is a row to compute, and slot i of the row holds entry i."""

    token_ids: list[int]  # prompt + generated so far
    prompt_length: int
    namespace: Namespace  # (model revision, adapter, salt)
    max_new_tokens: int
    priority: int = 0  # higher goes first
    use_cache: bool = True  # False: match nothing; what is computed may still be published
    lease: Lease | None = None  # on finish the lock moves there instead of being dropped
    logits_from: int | None = None  # first position whose logits the caller wants; None: the last token
    tree: TokenTree | None = None

    # The scheduler's; read-only for others.
    state: State = field(default=State.WAITING, init=False)
    row: Row | None = field(default=None, init=False)
    computed: int = field(default=0, init=False)  # leading entries whose KV is in the row
    cached_tokens: int = field(default=0, init=False)  # prompt tokens found in the cache when first admitted
    loaded_tokens: Loaded = field(default=Loaded(0, 0), init=False)  # those of them that came from the tiers below
    token_limit: int = field(default=0, init=False)  # most tokens it can ever have here, the last one not computed
    arrival: int = field(default=-1, init=False)  # order of `add`
    arrival_clock: int = field(default=0, init=False)  # rows scheduled before it arrived
    trie: TrieLayout | None = field(default=None, init=False)
    entry: Entry | None = field(default=None, init=False)  # its place in line, until it first runs
    total: int = field(default=0, init=False)  # entries to compute
    wanted: int = field(default=0, init=False)  # first entry whose logits are due: from here on nothing comes cached
    _key: bytes = field(default=b"", init=False)

    def __post_init__(self) -> None:
        self.total = len(self.token_ids)
        if self.tree is not None:
            self.total += len(self.tree.tokens)
            self.trie = lay_out(self.tree)

    def begin(self, token_limit: int) -> None:
        """Handed to a scheduler."""
        last = len(self.token_ids) - 1
        self.token_limit = token_limit
        self.wanted = last if self.logits_from is None else min(self.logits_from, last)

    @property
    def admitted_before(self) -> bool:
        return self.state is State.PREEMPTED

    @property
    def cacheable(self) -> int:
        """Leading tokens that need not be computed here."""
        return min(self.wanted, len(self.token_ids))

    def key(self) -> bytes:
        """The tokens as a key of the radix tree."""
        known = keys.count(self._key)
        if known < len(self.token_ids):
            self._key += keys.encode(self.token_ids[known:])
        return self._key

    def extend(self, token_ids: list[int], logits_from: int | None) -> None:
        self.token_ids.extend(token_ids)
        self.total += len(token_ids)
        self.wanted = len(self.token_ids) - 1 if logits_from is None else logits_from

    def cut(self, length: int) -> None:
        """Drop the tokens from `length` on."""
        self.total -= len(self.token_ids) - length
        del self.token_ids[length:]
        self._key = keys.piece(self._key, 0, length)
        self.computed = min(self.computed, length)
