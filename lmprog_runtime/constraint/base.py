"""What the engine knows of a constraint: a grammar whose whole configuration is one integer."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

DEAD = -1
"""The state after a token that the grammar does not allow."""

FAR = 2**31 - 1
"""More tokens than any budget has: no completion is known within the limits."""


class Grammar(Protocol):
    """A constraint compiled for one vocabulary. Thread-safe. States are ints: copying one is a fork, keeping one is a
    rollback point, equal ints in one grammar mean equal futures."""

    start: int
    can_close: bool  # whether completions can be known at all: `tokens_to_finish` and `closing_tokens`

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

    def tokens_to_finish(self, state: int) -> int:
        """How many tokens `closing_tokens` has, without the end token: 0 exactly when the state accepts, FAR when no
        completion is known within the limits. In tokens, not bytes, and exact for that one completion: each of its
        tokens lowers the number by one, whether the list is followed or asked for anew at every step. So a generation
        whose number was once at most its budget can end within it."""
        ...

    def closing_tokens(self, state: int) -> list[int]:
        """The completion that is shortest in bytes, in as few tokens as can spell it. Empty where nothing is needed, or
        known (tokens_to_finish tells which)."""
        ...

    def guessed_tokens(self, state: int) -> list[int]:
        """A guess at the tokens of the text that the grammar forces next, the held-back tail included. Empty when it
        forces none. Each is for the model to confirm: which token spans the end is its choice."""
        ...
