"""Splits a chat answer, as it streams, into content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.server.common import TextOffsets
from lmprog_runtime.server.tool_formats import MARKERS, Begin, Part, Reader
from lmprog_runtime.server.tools import ToolPlan
from lmprog_runtime.stops import StopMatcher

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_BARE_CALL = '{"name":'


class Piece(NamedTuple):
    kind: Literal["content", "reasoning", "call"]
    text: str  # of a call: a part of its arguments, as JSON text
    call_index: int = 0
    call_id: str = ""
    name: str = ""
    is_first: bool = False  # of a call: its id and name travel with this piece

    def delta(self) -> dict[str, Any]:
        """The piece as the `delta` of an OpenAI chat chunk."""
        if self.kind == "content":
            return {"content": self.text}
        if self.kind == "reasoning":
            return {"reasoning_content": self.text}
        call: dict[str, Any] = {"index": self.call_index, "function": {"arguments": self.text}}
        if self.is_first:
            call = {**call, "id": self.call_id, "type": "function"}
            call["function"] = {"name": self.name, "arguments": self.text}
        return {"tool_calls": [call]}


class Markers:
    """Puts the names of control tokens that mark calls back into the text, which is decoded without them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._names = {tokenizer.special_names[name]: name for name in MARKERS if name in tokenizer.special_names}
        self._offsets = TextOffsets(tokenizer)
        self._length = 0

    def push(self, text: str, token_ids: Sequence[int]) -> str:
        """`text` is what these tokens, and those before that were held back, have come to."""
        start, self._length = self._length, self._length + len(text)
        for at, token_id in reversed(list(zip(self._offsets.push(token_ids), token_ids, strict=True))):
            if token_id in self._names:
                cut = min(max(at - start, 0), len(text))
                text = text[:cut] + self._names[token_id] + text[cut:]
        return text


class Splitter:
    """Push text in, get pieces out. What could still become a tag is held back; `end` gives what is left."""

    def __init__(self, plan: ToolPlan, *, reasoning: bool, starts_inside: bool = False) -> None:
        self._plan, self._format = plan, plan.format
        self._tags = ([THINK_OPEN] if reasoning else []) + ([self._format.opening] if plan.may_call else [])
        self._inside = THINK_OPEN if starts_inside else ""  # the opening tag that we are in
        self._matcher = StopMatcher([THINK_CLOSE] if starts_inside else self._tags)
        self._reader: Reader | None = None
        self._start: str | None = "" if plan.may_call and self._format.is_bare else None  # may become a bare call
        self._raw = ""  # what the reader was given
        self._calls = 0
        self._calls_before = 0  # when the reader began
        self._call_id = ""
        if plan.constraint is not None:
            self._begin_call("")

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        tag: str | None = ""
        while tag is not None:
            shown, tag, text = self._matcher.push(text)
            pieces += self._show(shown)
            if tag is not None:
                pieces += self._show(tag) if self._reader is not None and self._reader.is_in_text else self._turn(tag)
        return pieces

    def end(self) -> list[Piece]:
        """What was held back, now that no more text comes."""
        pieces = self._show(self._matcher.flush())
        if self._start:
            pieces.append(Piece("content", self._start))
        return pieces + (self._close_call("") if self._reader is not None else [])

    def _turn(self, tag: str) -> list[Piece]:
        """Go into or out of a tag."""
        pieces: list[Piece] = []
        if self._start:
            pieces, self._start = [Piece("content", self._start)], ""
        if tag == THINK_OPEN:
            self._inside, self._matcher = tag, StopMatcher([THINK_CLOSE])
            return pieces
        if tag == self._format.opening and self._reader is None and self._plan.may_call:
            self._begin_call(tag)
            return pieces
        pieces += self._close_call(tag) if self._reader is not None else []
        self._inside, self._matcher = "", StopMatcher(self._tags)
        return pieces

    def _show(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._reader is not None:
            self._raw += text
            return self._pieces(self._reader.push(text))
        if self._inside:
            return [Piece("reasoning", text)]
        if self._start is None:
            return [Piece("content", text)]
        return self._show_start(text)

    def _show_start(self, text: str) -> list[Piece]:
        """The first of the content, held back while it may be the beginning of a call without an opening."""
        text, self._start = (self._start or "") + text, None
        begins = "".join(text.split())[: len(_BARE_CALL)]
        if begins == _BARE_CALL:
            self._begin_call("")
            return self._show(text)
        if _BARE_CALL.startswith(begins):
            self._start = text
            return []
        return [Piece("content", text)]

    # -- calls ----------------------------------------------------------------------------------------------------

    def _begin_call(self, opening: str) -> None:
        self._reader, self._raw, self._start = self._format.make_reader(self._plan.schemas), opening, None
        self._calls_before = self._calls
        closing = self._format.closing if self._plan.constraint is None else None
        self._matcher = StopMatcher([closing] if closing else [])

    def _close_call(self, closing: str) -> list[Piece]:
        assert self._reader is not None
        parts, self._reader = self._reader.end(), None
        if parts is None and self._calls == self._calls_before:  # it is no call after all
            return [Piece("content", self._raw + closing)] if self._raw + closing else []
        return self._pieces(parts or [])

    def _pieces(self, parts: Iterable[Part]) -> list[Piece]:
        pieces = []
        for part in parts:
            if isinstance(part, Begin):
                self._calls += 1
                self._call_id = self._format.new_id()
                pieces.append(Piece("call", "", self._calls - 1, self._call_id, part.name, is_first=True))
            else:
                pieces.append(Piece("call", part, self._calls - 1, self._call_id))
        return [piece for piece in pieces if piece.call_index == 0 or not self._plan.only_one]
