"""A compiled constraint: the automaton of one arena over one vocabulary, with the caches that make it cheap to ask."""

from __future__ import annotations

import threading
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.arena import Arena, Walker, new_walker
from lmprog_runtime.constraint.base import DEAD, FAR
from lmprog_runtime.constraint.closing import MOST_BYTES
from lmprog_runtime.constraint.forced import forced_tokens, guessed_tokens
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintTooLarge

MASK_CACHE_BYTES = 32 * 2**20
"""Masks kept per grammar; the compact form of all others stays in the C++ core."""

MOST_REMEMBERED = 10_000
"""States whose forced tokens and completions are kept."""

_REMEMBERED_BYTES = 256
"""What a state takes in one of these tables, its completion not counted."""


class _Known:
    """What was found out of states. Shared by a grammar and the same one behind a prefix."""

    def __init__(self) -> None:
        self.masks: dict[int, NDArray[np.uint32]] = {}
        self.forced: dict[int, tuple[int, ...]] = {}
        self.final: dict[int, bool] = {}
        self.closing: dict[int, bytes | None] = {}
        self.closing_bytes = 0

    @property
    def nbytes(self) -> int:
        """Without the masks."""
        states = len(self.forced) + len(self.final) + len(self.closing)
        return states * _REMEMBERED_BYTES + self.closing_bytes

    def keep_closing(self, state: int, text: bytes | None) -> None:
        if len(self.closing) >= MOST_REMEMBERED:
            self.closing = {}  # a new one: another thread may be reading the old
            self.closing_bytes = 0
        self.closing[state] = text
        self.closing_bytes += len(text or b"")


class CompiledGrammar:
    """Implements `constraint.base.Grammar`. States are the arena's expressions; DEAD is its 0.

    cached_as: the key under which the vocabulary's cache keeps it, which is told whenever it has grown."""

    can_close = True

    def __init__(self, arena: Arena, start: int, vocabulary: Vocabulary, cached_as: Hashable = None) -> None:
        self.arena, self.start, self.vocabulary, self._cached_as = arena, start, vocabulary, cached_as
        self._walker: Walker = new_walker(arena, vocabulary)
        self._known = _Known()
        self._most_masks = max(16, MASK_CACHE_BYTES // (4 * vocabulary.mask_words))
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory that goes when the grammar goes."""
        return self.arena.nbytes + len(self._known.masks) * self.vocabulary.mask_words * 4 + self._known.nbytes

    def _report_growth(self) -> None:
        if self._cached_as is not None:
            self.vocabulary.compiled.remeasure(self._cached_as)

    def starting_with(self, data: bytes) -> CompiledGrammar | None:
        """The same constraint with `data` in front; shares everything. None when the vocabulary cannot write `data`."""
        if not self.vocabulary.can_write(data):
            return None
        other = object.__new__(CompiledGrammar)
        other.__dict__.update(self.__dict__)
        other.start = self.arena.concat([self.arena.literal(data), self.start])
        return other

    def mask(self, state: int) -> NDArray[np.uint32]:
        found = self._known.masks.get(state)
        return self._new_mask(state) if found is None else found

    def _new_mask(self, state: int) -> NDArray[np.uint32]:
        if state == DEAD:
            return np.zeros(self.vocabulary.mask_words, np.uint32)
        mask, is_accepting = self._walker.mask(state)
        if is_accepting:
            for token_id in self.vocabulary.eos_ids:
                mask[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        mask.flags.writeable = False
        with self._lock:
            masks = self._known.masks
            while len(masks) >= self._most_masks:
                del masks[next(iter(masks))]
            masks[state] = mask
        self._report_growth()
        return mask

    def advance(self, state: int, token_id: int) -> int:
        if state == DEAD:
            return DEAD
        if token_id in self.vocabulary.eos_ids:
            return state if self.arena.is_nullable(state) else DEAD
        return self._walker.advance(state, token_id) or DEAD

    def advance_bytes(self, state: int, data: bytes) -> int:
        return DEAD if state == DEAD else self.arena.step(state, data) or DEAD

    def is_accepting(self, state: int) -> bool:
        return state != DEAD and self.arena.is_nullable(state)

    def is_final(self, state: int) -> bool:
        found = self._known.final.get(state)
        if found is None:
            found = self._known.final[state] = state != DEAD and self.arena.is_final(state)
        return found

    def forced_tokens(self, state: int) -> list[int]:
        known = self._known.forced
        found = known.get(state)
        if found is None:
            found = () if state == DEAD else tuple(forced_tokens(self._walker, self.vocabulary, self.mask, state))
            if len(known) < MOST_REMEMBERED:
                known[state] = found
            self._report_growth()
        return list(found)

    def guessed_tokens(self, state: int) -> list[int]:
        return [] if state == DEAD else guessed_tokens(self._walker, self.vocabulary, state)

    def tokens_to_finish(self, state: int) -> int:
        text = self._closing_text(state)
        count = None if text is None else self.vocabulary.spelling.count(text)
        return FAR if count is None else count

    def closing_tokens(self, state: int) -> list[int]:
        return list(self.vocabulary.spelling.tokens(self._closing_text(state) or b""))

    def _closing_text(self, state: int) -> bytes | None:
        known = self._known.closing
        if state in known:
            return known[state]
        text = self._shortest_text(state)
        with self._lock:
            self._known.keep_closing(state, text)
        self._report_growth()
        return text

    def _shortest_text(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        try:
            return self.arena.shortest(state, MOST_BYTES)
        except ConstraintTooLarge:  # the search took too long: no completion is known
            return None
