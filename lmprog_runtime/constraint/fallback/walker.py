"""Masks and jumps of the pure Python core, with the interface that `constraint.arena.Walker` describes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.fallback.arena import PythonArena
from lmprog_runtime.constraint.fallback.nodes import EMPTY
from lmprog_runtime.constraint.vocabulary import Vocabulary


class PythonWalker:
    def __init__(self, arena: PythonArena, vocabulary: Vocabulary) -> None:
        self.arena, self.nodes = arena, arena.nodes
        self._vocabulary, self._trie = vocabulary, vocabulary.python_trie

    def mask(self, state: int) -> tuple[NDArray[np.uint32], bool]:
        allowed = self.arena.guarded(self._trie.allowed, self.nodes, state)
        padded = np.zeros(self._vocabulary.mask_words * 32, bool)
        padded[: len(allowed)] = allowed
        return np.packbits(padded, bitorder="little").view("<u4"), self.nodes.nullable[state]

    def advance(self, state: int, token_id: int) -> int:
        data = self._vocabulary.token_bytes[token_id]
        return self.arena.step(state, data) if data else EMPTY

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        return self.arena.guarded(self._forced, state, most)

    def _forced(self, state: int, most: int) -> tuple[bytes, int]:
        states, data = [state], bytearray()
        while len(data) < most and (byte := self._only_byte(state)) is not None:
            data.append(byte)
            state = self.nodes.next_state(state, byte)
            states.append(state)
        text = bytes(data)
        cut = next((i for i in range(len(text)) if self._spans(states[i], text[i:])), len(text))
        return text, cut

    def _only_byte(self, state: int) -> int | None:
        """The byte that must come next, when there is just one."""
        if self.nodes.nullable[state]:
            return None
        allowed = self.nodes.first(state) & self.nodes.producible
        live = [b for b in range(256) if allowed >> b & 1 and self.nodes.next_state(state, b) != EMPTY]
        return live[0] if len(live) == 1 else None

    def _spans(self, state: int, data: bytes) -> bool:
        """Whether an allowed token begins with `data` and is longer."""
        return any(
            len(token) > len(data) and self.nodes.step(state, token) != EMPTY
            for token, _ in self._vocabulary.starting_with(data)
        )
