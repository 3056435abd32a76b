"""How a chat looks as plain text: the one rendering that `text()` and the scripted backend share.

A model's own template belongs to its backend. This one is for people, tests and transcripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ROLE_END = "<|im_end|>\n"


def role_begin(role: str) -> str:
    return f"<|im_start|>{role}\n"


def render(messages: Iterable[Mapping[str, object]]) -> str:
    """Messages as `State.messages()` gives them. A message marked `partial` is left open."""
    return "".join(
        f"{role_begin(str(m['role']))}{m['content']}{'' if m.get('partial') else ROLE_END}" for m in messages
    )
