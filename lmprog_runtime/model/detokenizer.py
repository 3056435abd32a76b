"""Turns token ids into text as they come, exactly at the byte level."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol


class HasTokenBytes(Protocol):
    @property
    def token_bytes(self) -> Sequence[bytes | None]: ...


class Detokenizer:
    """The text of one output. A character appears when its last byte has come, and never as U+FFFD before that.

    Special tokens have no text. Bytes that can be no part of a character (a model may emit any) are left out, and so
    is a character that is unfinished at the end; so the pieces of any split add up to the text of the whole.
    """

    def __init__(self, tokenizer: HasTokenBytes) -> None:
        self._token_bytes = tokenizer.token_bytes
        self.unfinished = b""  # the beginning of a character, when the tokens so far end inside one

    def push(self, token_id: int) -> str:
        """Text that can no longer change; may be empty."""
        data = self.unfinished + (self._token_bytes[token_id] or b"")
        text, used = utf_8_decode(data, "ignore", False)
        self.unfinished = data[used:]
        return text

    def flush(self) -> str:
        """The end: what is still to be shown, which is nothing, as an unfinished character is left out."""
        return utf_8_decode(self.unfinished, "ignore", True)[0]
