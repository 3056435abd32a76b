"""An example of what a constraint allows, for messages."""

from __future__ import annotations

from lmprog_runtime.constraint.arena import Arena

_MOST_STATES = 2_000


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
