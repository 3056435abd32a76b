"""The text and the messages of a state, rendered from the records of its steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmprog import chat
from lmprog.backends.base import Stream
from lmprog.record import Record

Message = dict[str, Any]


def text_of(record: Record) -> str:
    if record.kind == "role_begin":
        return chat.role_begin(record.name)
    return chat.ROLE_END if record.kind == "role_end" else record.text


def as_text(records: Iterable[Record]) -> str:
    return "".join(map(text_of, records))


def as_messages(records: Iterable[Record]) -> list[Message]:
    """Turns in order, as {"role", "content"}; a turn that is still open has "partial": True.

    Text outside of turns is no message.
    """
    messages: list[Message] = []
    is_open = False
    for record in records:
        if record.kind == "role_begin":
            messages.append({"role": record.name, "content": "", "partial": True})
            is_open = True
        elif record.kind == "role_end":
            del messages[-1]["partial"]
            is_open = False
        elif is_open:
            messages[-1]["content"] += record.text
    return messages


def replay(record: Record, stream: Stream) -> None:
    """Write on a stream what a step of another one wrote."""
    if record.kind == "role_begin":
        stream.begin_role(record.name)
    elif record.kind == "role_end":
        stream.end_role()
    elif record.kind == "special":
        stream.append_special(record.text)
    else:
        stream.append_text(record.text)
