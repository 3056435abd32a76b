"""A compiled constraint: the automaton of one arena over one vocabulary, with the caches that make it cheap to ask."""

from __future__ import annotations

import threading

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


class CompiledGrammar:
    """Implements `constraint.base.Grammar`. States are the arena's expressions; DEAD is its 0."""

    def __init__(self, arena: Arena, start: int, vocabulary: Vocabulary) -> None:
        self.arena, self.start, self.vocabulary = arena, start, vocabulary
        self._walker: Walker = new_walker(arena, vocabulary)
        self._masks: dict[int, NDArray[np.uint32]] = {}
        self._most_masks = max(16, MASK_CACHE_BYTES // (4 * vocabulary.mask_words))
        self._forced: dict[int, tuple[int, ...]] = {}
        self._final: dict[int, bool] = {}
        self._closing: dict[int, bytes | None] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory that goes when the grammar goes."""
        return self.arena.nbytes + len(self._masks) * self.vocabulary.mask_words * 4

    def starting_with(self, data: bytes) -> CompiledGrammar | None:
        """The same constraint with `data` in front; shares everything. None when the vocabulary cannot write `data`."""
        if not self.vocabulary.can_write(data):
            return None
        other = object.__new__(CompiledGrammar)
        other.__dict__.update(self.__dict__)
        other.start = self.arena.concat([self.arena.literal(data), self.start])
        return other

    def mask(self, state: int) -> NDArray[np.uint32]:
        found = self._masks.get(state)
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
            while len(self._masks) >= self._most_masks:
                del self._masks[next(iter(self._masks))]
            self._masks[state] = mask
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
        found = self._final.get(state)
        if found is None:
            found = self._final[state] = state != DEAD and self.arena.is_final(state)
        return found

    def forced_tokens(self, state: int) -> list[int]:
        found = self._forced.get(state)
        if found is None:
            found = () if state == DEAD else tuple(forced_tokens(self._walker, self.vocabulary, self.mask, state))
            if len(self._forced) < MOST_REMEMBERED:
                self._forced[state] = found
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
        closing = self._closing
        if state not in closing:
            if len(closing) >= MOST_REMEMBERED:
                closing = self._closing = {}
            closing[state] = self._shortest_text(state)
        return closing[state]

    def _shortest_text(self, state: int) -> bytes | None:
        if state == DEAD:
            return None
        try:
            return self.arena.shortest(state, MOST_BYTES)
        except ConstraintTooLarge:  # the search took too long: no completion is known
            return None
