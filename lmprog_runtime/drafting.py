"""Guesses at the next tokens, to be verified in the same step as further rows. No torch, no scheduling.

A guess is right when the request's own sampler, with its own mask, penalties and seed, chooses it from the logits of
the row before: then that row's work is already done. So outputs are those without guessing, greedy or sampled. Sources
of guesses: the end of a forced text that jump-forward holds back, else what followed the last tokens where they stood
before (prompt lookup: Saxena, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lmprog_runtime.cache import keys
from lmprog_runtime.constraint.base import DEAD, Grammar
from lmprog_runtime.errors import ConstraintTooLarge

MOST_DRAFTS = 8
_LOOKUP_LENGTHS = (4, 2)  # tokens that must have stood before, the most telling first

ROW_COST = 0.15
"""Cost of one more row as a share of what a step costs whatever its rows (reading the weights). SmolLM2-135M on 2
cores: 0.10 in bfloat16, 0.14 in float32, 0.17 in 4 bits."""

_PRIOR = 0.5
_WEIGHT = 0.15  # of one outcome
_PAUSE = 64  # steps without a guess, after which one is tried: at most 1.6 % more rows, whatever the batch
_FIRST_PAUSE = 8


class Acceptance:
    """How often guesses of one source come true for one request, lately."""

    def __init__(self) -> None:
        self.rate = _PRIOR
        self._until_trial = _FIRST_PAUSE

    def note(self, was_right: bool) -> None:
        self._until_trial = _PAUSE
        self.rate += _WEIGHT * (was_right - self.rate)

    def length(self, running: int) -> int:
        """How many tokens are worth a guess when `running` requests share a step; 0: none.

        Guess i comes true with probability rate ** i. It then saves this request a step, of which it pays 1 / running;
        else a row was computed for nothing. The fixed part of a step being 1: r / running > (1 - r) * ROW_COST.
        """
        least = running * ROW_COST / (1 + running * ROW_COST)
        if self.rate <= least:
            self._until_trial -= 1
            return int(self._until_trial < 0)
        return min(MOST_DRAFTS, int(math.log(least) / math.log(min(self.rate, 0.99))))


class Drafter:
    """Makes the guesses of one request and learns from what becomes of them."""

    def __init__(self, grammar: Grammar | None) -> None:
        self._grammar = grammar
        self._lookups, self._tails = Acceptance(), Acceptance()
        self._source = self._lookups
        self.drafts: list[int] = []  # the guesses being verified
        self.pending = 0  # of them, those that are neither confirmed nor dropped
        self.drafted = 0  # of this request
        self.accepted = 0

    def draft(self, key: Callable[[], bytes], state: int, running: int, most: Callable[[], int]) -> list[int]:
        """At most `most()` guesses after the tokens of `key()` (as `cache.keys` writes them), which are asked for only
        when a guess pays; `state` is the grammar's."""
        try:
            self.drafts = self._tail(state, running, most) or self._lookup(key, state, running, most)
        except ConstraintTooLarge:  # looking ahead met a limit that the output itself may never reach
            self.drafts = []
        self.pending = len(self.drafts)
        self.drafted += self.pending
        return self.drafts

    def confirm(self, token_ids: list[int]) -> int:
        """Tokens were accepted: how many of them, from the first on, are the next guesses."""
        same = 0
        for guess, token_id in zip(self.drafts[len(self.drafts) - self.pending :], token_ids, strict=False):
            self._source.note(guess == token_id)
            if guess != token_id:
                break
            same += 1
        self.pending -= same
        self.accepted += same
        return same

    def drop(self) -> None:
        """What is not confirmed was wrong, or its row is not at hand."""
        self.drafts, self.pending = [], 0

    def _tail(self, state: int, running: int, most: Callable[[], int]) -> list[int]:
        if self._grammar is None:
            return []
        wanted = self._tails.length(running)
        if not wanted or (count := min(wanted, most())) <= 0:
            return []
        self._source = self._tails
        return self._allowed(self._grammar.guessed_tokens(state)[:count], state)

    def _lookup(self, key: Callable[[], bytes], state: int, running: int, most: Callable[[], int]) -> list[int]:
        wanted = self._lookups.length(running)
        if not wanted or (count := min(wanted, most())) <= 0:
            return []
        self._source = self._lookups
        return self._allowed(what_followed(key(), count), state)

    def _allowed(self, token_ids: list[int], state: int) -> list[int]:
        """The guesses up to the first that the grammar rules out."""
        if self._grammar is None:
            return token_ids
        for index, token_id in enumerate(token_ids):
            state = self._grammar.advance(state, token_id)
            if state == DEAD or self._grammar.is_final(state):
                return token_ids[: index + (state != DEAD)]
        return token_ids


def what_followed(key: bytes, count: int) -> list[int]:
    """The tokens, at most `count`, that came after the last tokens of `key` where these last stood; [] if never."""
    for length in _LOOKUP_LENGTHS:
        tail = keys.piece(key, keys.count(key) - length, keys.count(key))
        end = len(key) - 1  # not the tail itself
        while len(tail) == length * keys.TOKEN_BYTES and (at := key.rfind(tail, 0, end)) >= 0:
            if at % keys.TOKEN_BYTES == 0:
                first = at // keys.TOKEN_BYTES + length
                found = keys.decode(keys.piece(key, first, first + count))
                return (found * count)[:count]  # a loop goes on
            end = at + len(tail) - 1
    return []
