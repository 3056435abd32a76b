"""Tries of choices: what is computed is what something follows, and nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmprog_runtime.scheduler.trie import lay_out
from lmprog_runtime.scoring import ChoiceTrie, NodeScore

choices = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8)


def _text(trie: ChoiceTrie, row: int) -> tuple[int, ...]:
    """The tokens from the prefix to a computed row."""
    found: tuple[int, ...] = ()
    while row >= 0:
        found, row = (trie.tree.tokens[row], *found), trie.tree.parents[row]
    return found


@given(choices)
def test_every_token_is_scored_by_the_row_of_what_comes_before_it(given_choices: list[list[int]]) -> None:
    trie = ChoiceTrie(given_choices)
    scored = [(*_text(trie, parent), token) for token, parent in zip(trie.tokens, trie.parents, strict=True)]
    prefixes = {tuple(choice[:end]) for choice in given_choices for end in range(1, len(choice) + 1)}
    assert sorted(scored) == sorted(prefixes)
    numbered = [NodeScore(float(index), False) for index in range(len(scored))]
    for choice, answer in zip(given_choices, trie.choices(numbered, with_greedy=False), strict=True):
        assert [scored[int(each)] for each in answer.logprobs] == [
            tuple(choice[:end]) for end in range(1, len(choice) + 1)
        ]


@given(choices)
def test_last_tokens_are_not_computed(given_choices: list[list[int]]) -> None:
    trie = ChoiceTrie(given_choices)
    lay_out(trie.tree)  # in depth-first preorder, else it raises
    inner = {tuple(choice[:end]) for choice in given_choices for end in range(1, len(choice))}
    assert sorted(_text(trie, row) for row in range(len(trie.tree.tokens))) == sorted(inner)
