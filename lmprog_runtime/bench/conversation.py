"""The noun of all data sets: a conversation of one or more turns."""

from __future__ import annotations

from typing import NamedTuple


class Turn(NamedTuple):
    token_ids: tuple[int, ...]  # what is new after the turns and answers before
    output_len: int  # tokens to generate


class Conversation(NamedTuple):
    """Turns are sent one after the other, each with all before it; a single request has one turn."""

    turns: tuple[Turn, ...]

    @classmethod
    def single(cls, token_ids: list[int], output_len: int) -> Conversation:
        return cls((Turn(tuple(token_ids), output_len),))
