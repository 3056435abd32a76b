"""Examples of what a constraint allows: whether there is one in tokens, and a short one for messages."""

from __future__ import annotations

import numpy as np

from lmprog_runtime.constraint.arena import Arena
from lmprog_runtime.constraint.grammar import CompiledGrammar

_MOST_STATES = 2_000
_MOST_STEPS = 5_000


def shortest_text(arena: Arena, state: int) -> bytes | None:
    """A shortest accepted text, or None when it lies further than a bounded search."""
    seen = {state}
    level = [(state, b"")]
    while level and len(seen) < _MOST_STATES:
        following: list[tuple[int, bytes]] = []
        for at, text in level:
            if arena.is_nullable(at):
                return text
            for byte in range(256):
                after = arena.step(at, bytes([byte]))
                if after and after not in seen:
                    seen.add(after)
                    following.append((after, text + bytes([byte])))
        level = following
    return next((text for at, text in level if arena.is_nullable(at)), None)


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
