"""Data sets made from a seed: random, groups with a shared prefix, conversations.

Token ids are drawn from those that stand for plain text, so that they survive a way over text as well as they can.
Lengths follow the conventions of SGLang's bench_serving.
"""

from __future__ import annotations

import numpy as np

from lmprog_runtime.bench.conversation import Conversation, Turn
from lmprog_runtime.model.tokenizer import Tokenizer


class TokenSource:
    """Random token ids by seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self._ids = np.asarray(plain_ids(tokenizer))

    def ids(self, count: int) -> list[int]:
        return [int(token_id) for token_id in self.generator.choice(self._ids, count)]

    def length(self, longest: int, ratio: float) -> int:
        """From `ratio` times the longest up to the longest, all equally likely; at least 1."""
        return int(self.generator.integers(max(1, int(longest * ratio)), longest + 1))


def plain_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of tokens that are printable ASCII text; the control tokens and parts of characters are left out."""
    allowed = set(range(32, 127))
    return [
        token_id
        for token_id in range(tokenizer.vocab_size)
        if token_id not in tokenizer.special_ids
        and (text := tokenizer.decode_bytes([token_id]))
        and allowed.issuperset(text)
    ]


def random_requests(
    source: TokenSource, count: int, *, input_len: int, output_len: int, ratio: float
) -> list[Conversation]:
    """Requests that share nothing. ratio: 1 makes all lengths equal, 0 draws them from 1 up."""
    return [
        Conversation.single(source.ids(source.length(input_len, ratio)), source.length(output_len, ratio))
        for _ in range(count)
    ]


def shared_prefixes(
    source: TokenSource, *, groups: int, per_group: int, lengths: tuple[int, int, int], zipf: float | None
) -> list[Conversation]:
    """groups * per_group requests in random order, each a group's system prompt and a question of its own.

    lengths: system prompt, question, output, in tokens. zipf: None gives each group its `per_group` requests; a number
    draws the group of each request with a probability that falls with its rank to that power.
    """
    system_len, question_len, output_len = lengths
    prompts = [source.ids(system_len) for _ in range(groups)]
    asked = group_order(source.generator, groups, per_group, zipf)
    return [Conversation.single(prompts[group] + source.ids(question_len), output_len) for group in asked]


def group_order(generator: np.random.Generator, groups: int, per_group: int, zipf: float | None) -> list[int]:
    """Which group each request belongs to."""
    if zipf is None:
        return [int(group) for group in generator.permutation(np.repeat(np.arange(groups), per_group))]
    weights = 1.0 / np.arange(1, groups + 1) ** zipf
    return [int(group) for group in generator.choice(groups, groups * per_group, p=weights / weights.sum())]


def multi_turn(
    source: TokenSource, count: int, *, turns: int, system_len: int, turn_len: int, output_len: int
) -> list[Conversation]:
    """Conversations behind one system prompt."""
    system = source.ids(system_len) if system_len else []

    def turn(number: int) -> Turn:
        return Turn((*(system if number == 0 else []), *source.ids(turn_len)), output_len)

    return [Conversation(tuple(turn(number) for number in range(turns))) for _ in range(count)]
