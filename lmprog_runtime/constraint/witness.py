"""Whether a constraint can be satisfied in tokens."""

from __future__ import annotations

import numpy as np

from lmprog_runtime.constraint.grammar import CompiledGrammar

_MOST_STEPS = 5_000


def is_unwritable(grammar: CompiledGrammar) -> bool:
    """Whether no sequence of tokens satisfies the grammar; False also when a bounded search does not decide it. Only of
    interest where some byte is no token by itself: elsewhere the automaton has left such states out."""
    seen, waiting, steps = {grammar.start}, [grammar.start], 0
    while waiting and steps < _MOST_STEPS:
        state = waiting.pop()
        if grammar.is_accepting(state):
            return False
        allowed = np.unpackbits(grammar.mask(state).view(np.uint8), bitorder="little").nonzero()[0]
        steps += 1 + len(allowed)
        following = {grammar.advance(state, token_id) for token_id in allowed[:_MOST_STEPS].tolist()} - seen
        seen |= following
        waiting += following
    return not waiting
