"""Splits a chat answer, as it streams, into content, reasoning and tool calls."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, Literal, NamedTuple

from lmprog_runtime.server.tools import CALL_CLOSE, CALL_OPEN, ToolPlan
from lmprog_runtime.stops import StopMatcher

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_ENVELOPE = re.compile(r'\{"name": ?"((?:[^"\\]|\\.)*)", ?"arguments": ?')


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


class Splitter:
    """Push text in, get pieces out. What could still become a tag is held back; `end` gives what is left."""

    def __init__(self, plan: ToolPlan, *, reasoning: bool, starts_inside: bool = False) -> None:
        self._is_one_call = plan.constraint is not None
        self._tags = ([THINK_OPEN] if reasoning else []) + ([CALL_OPEN] if plan.may_call else [])
        self._inside = THINK_OPEN if starts_inside else ""  # the opening tag that we are in
        self._matcher = StopMatcher([THINK_CLOSE] if starts_inside else self._tags)
        self._buffer = ""
        self._calls = 0
        self._call_id = ""

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def push(self, text: str) -> list[Piece]:
        if self._is_one_call:
            return self._push_envelope(text)
        pieces: list[Piece] = []
        tag: str | None = ""
        while tag is not None:
            shown, tag, text = self._matcher.push(text)
            pieces += self._show(shown)
            if tag is not None:
                pieces += self._turn(tag)
        return pieces

    def _turn(self, tag: str) -> list[Piece]:
        """Go into or out of a tag."""
        closes = {THINK_OPEN: THINK_CLOSE, CALL_OPEN: CALL_CLOSE}
        if tag in closes:
            self._inside, self._matcher = tag, StopMatcher([closes[tag]])
            return []
        pieces = self._close_call() if self._inside == CALL_OPEN else []
        self._inside, self._matcher = "", StopMatcher(self._tags)
        return pieces

    def _show(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._inside == CALL_OPEN:
            self._buffer += text
            return []
        return [Piece("reasoning" if self._inside else "content", text)]

    def _close_call(self) -> list[Piece]:
        """The buffered call, or its text as content when it is not a call after all."""
        text, self._buffer = self._buffer, ""
        try:
            call = json.loads(text)
            name, given = str(call["name"]), call.get("arguments", call.get("parameters", {}))
            arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        except (ValueError, KeyError, TypeError, AttributeError):
            return [Piece("content", f"{CALL_OPEN}{text}{CALL_CLOSE}")]
        self._calls += 1
        return [Piece("call", arguments, self._calls - 1, _call_id(), name, is_first=True)]

    def _push_envelope(self, text: str) -> list[Piece]:
        """A constrained call: the name once it is whole, then the arguments as they come, without the last brace."""
        self._buffer += text
        pieces: list[Piece] = []
        if not self._calls:
            match = _ENVELOPE.match(self._buffer)
            if match is None:
                return []
            self._calls, self._call_id = 1, _call_id()
            self._buffer = self._buffer[match.end() :]
            pieces.append(Piece("call", "", 0, self._call_id, json.loads(f'"{match[1]}"'), is_first=True))
        if len(self._buffer) > 1:
            pieces.append(Piece("call", self._buffer[:-1], 0, self._call_id))
            self._buffer = self._buffer[-1:]
        return pieces

    def end(self) -> list[Piece]:
        """What was held back, now that no more text comes."""
        if self._is_one_call:
            left, self._buffer = self._buffer, ""
            return [] if left == "}" or not left else [self._cut_call(left)]
        held = self._matcher.flush()
        if self._inside == CALL_OPEN:
            text, self._buffer = CALL_OPEN + self._buffer + held, ""
            return [Piece("content", text)]
        return self._show(held)

    def _cut_call(self, left: str) -> Piece:
        """A call that max_tokens cut: its arguments so far, or its text when not even the name is there."""
        return Piece("call", left, 0, self._call_id) if self._calls else Piece("content", left)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
