"""Entries of one sequence that a step computes."""

from __future__ import annotations

from typing import NamedTuple

from lmprog_runtime.scheduler.sequence import Sequence


class Chunk(NamedTuple):
    """Entries [start, end)."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_decode(self) -> bool:
        """One token behind the prompt."""
        return self.end - self.start == 1 and self.start >= self.sequence.prompt_length and self.sequence.tree is None
