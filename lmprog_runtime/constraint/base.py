"""What the engine knows of a constraint: a grammar whose whole configuration is one integer."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

DEAD = -1
"""The state after a token that the grammar does not allow."""


class Grammar(Protocol):
    """A constraint compiled for one vocabulary. Thread-safe. States are ints: copying one is a fork, keeping one is a
    rollback point, equal ints in one grammar mean equal futures."""

    start: int

    def mask(self, state: int) -> NDArray[np.uint32]:
        """[ceil(vocab_size / 32)] bits, bit i%32 of word i//32 is token i; end-of-sequence ids are set exactly when the
        state accepts; other special ids never. Read-only; may be shared between equal states."""
        ...

    def advance(self, state: int, token_id: int) -> int:
        """State after a token; DEAD when it is not allowed. An end-of-sequence id in an accepting state keeps it."""
        ...

    def advance_bytes(self, state: int, data: bytes) -> int:
        """State after raw bytes; DEAD when they are not allowed."""
        ...

    def is_accepting(self, state: int) -> bool: ...

    def is_final(self, state: int) -> bool:
        """Accepting, and nothing can follow: generation can stop without sampling an end token."""
        ...

    def forced_tokens(self, state: int) -> list[int]:
        """Token ids that the grammar forces next, canonical, with a tail held back when a longer token could span it.
        Empty when there is a choice. Source: SGLang's jump-forward (arXiv 2312.07104), without its re-tokenisation."""
        ...
