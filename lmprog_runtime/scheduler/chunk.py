"""Entries of one sequence that a step computes."""

from __future__ import annotations

from typing import NamedTuple

from lmprog_runtime.scheduler.sequence import Sequence


class Chunk(NamedTuple):
    """Entries [start, end)."""

    sequence: Sequence
    start: int
    end: int
