"""Text as it grows: of a whole state, or of one step."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from lmprog.executor import Executor
from lmprog.record import Record
from lmprog.transcript import text_of
from lmprog.waiting import Predicate


class Cursor(Protocol):
    def has_more(self) -> bool:
        """Whether there is text that was not taken yet."""
        ...

    def take(self) -> str: ...


class TranscriptCursor:
    """Reads on in the transcript of a state."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._index = self._offset = 0  # of the record that is read next, and of the character in it
        self._unread = ""

    def has_more(self) -> bool:
        records = self._executor.transcript
        while self._index < len(records):
            record = records[self._index]
            is_final = record.status == "done"  # looked up before the text, which may grow until then
            text = text_of(record)
            self._unread += text[self._offset :]
            if not is_final:
                self._offset = len(text)
                break
            self._index, self._offset = self._index + 1, 0
        return bool(self._unread)

    def take(self) -> str:
        text, self._unread = self._unread, ""
        return text


class RecordCursor:
    """Reads on in the text of one step."""

    def __init__(self, record: Record) -> None:
        self._record, self._offset = record, 0

    def has_more(self) -> bool:
        return len(self._record.text) > self._offset

    def take(self) -> str:
        text = self._record.text[self._offset :]
        self._offset += len(text)
        return text


def pieces(executor: Executor, cursor: Cursor, is_over: Predicate) -> Iterator[str]:
    """New text whenever there is some, until `is_over()` and all was read. Raises the state's failure."""
    while True:
        executor.wait(lambda: cursor.has_more() or is_over())
        if not (text := cursor.take()):
            return
        yield text


async def pieces_async(executor: Executor, cursor: Cursor, is_over: Predicate) -> AsyncIterator[str]:
    while True:
        await executor.wait_async(lambda: cursor.has_more() or is_over())
        if not (text := cursor.take()):
            return
        yield text
