"""`separate_reasoning`: the thoughts of a reasoning model apart from its answer.

What the model thinks goes to the variable `<name>_reasoning_content`; the answer is the variable, and it alone becomes
part of the text, so later prompts do not carry the thoughts along.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from lmprog.backends.base import GenerateCall, GenerateResult, PendingCall, Sink, Stream
from lmprog.errors import InvalidArgument
from lmprog.executor import Executor
from lmprog.nodes import Appendable, Block, Gen, Node, as_node
from lmprog.record import Record
from lmprog.steps import GenStep


class Reasoning(NamedTuple):
    """How a model marks its thoughts."""

    begin: str = "<think>"
    end: str = "</think>"
    starts_inside: bool = False  # the chat template has written `begin` already; the model may write it again


FORMATS = {"deepseek-r1": Reasoning(starts_inside=True), "qwen3": Reasoning()}


def separate_reasoning(expr: Appendable, model_type: str | Reasoning) -> Node:
    """`expr` with the thoughts of each of its gens kept apart.

    model_type: "deepseek-r1", "qwen3", or a `Reasoning` that says how thoughts are marked.
    """
    if isinstance(model_type, str) and model_type not in FORMATS:
        raise InvalidArgument(
            f"There is no reasoning format {model_type!r};", hint=f"it is one of {', '.join(FORMATS)}."
        )
    reasoning = FORMATS[model_type] if isinstance(model_type, str) else model_type
    node = as_node(expr)
    parts = node.nodes if isinstance(node, Block) else (node,)
    return Block(tuple(_with_reasoning(part, reasoning) if isinstance(part, Gen) else part for part in parts))


def _with_reasoning(node: Gen, reasoning: Reasoning) -> Gen:
    if node.constraint is not None:
        raise InvalidArgument("separate_reasoning is for one free text; a constraint would forbid the thoughts.")
    return replace(node, reasoning=reasoning)


def reasoning_name(name: str) -> str:
    return f"{name}_reasoning_content"


class Splitter:
    """Splits a text that comes in pieces. Holds back what may be the beginning of a mark."""

    def __init__(self, reasoning: Reasoning) -> None:
        self._reasoning = reasoning
        self._is_inside = reasoning.starts_inside
        self._has_begun = reasoning.starts_inside  # thoughts come first or not at all
        self._may_repeat_begin = reasoning.starts_inside
        self._held = ""

    def push(self, piece: str, *, is_last: bool = False) -> tuple[str, str]:
        """(thoughts, answer) that are certain now."""
        self._held += piece
        if self._may_repeat_begin and not self._skip_repeated_begin(is_last):
            return "", ""
        thoughts = answer = ""
        while True:
            text, found = self._take(is_last)
            if self._is_inside:
                thoughts += text
            else:
                answer += text
            if not found:
                return thoughts, answer
            self._is_inside = not self._is_inside

    def _skip_repeated_begin(self, is_last: bool) -> bool:
        """False while it is not certain yet whether the text begins with another `begin`."""
        begin = self._reasoning.begin
        if not is_last and len(self._held) < len(begin) and begin.startswith(self._held):
            return False
        self._held, self._may_repeat_begin = self._held.removeprefix(begin), False
        return True

    def _take(self, is_last: bool) -> tuple[str, bool]:
        """Text up to the next mark, and whether there was one."""
        mark = self._mark()
        before, found, after = self._held.partition(mark) if mark else (self._held, "", "")
        if found:
            self._held, self._has_begun = after, True
            return before, True
        kept = 0 if is_last or not mark else _overlap(self._held, mark)
        text, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return text, False

    def _mark(self) -> str:
        if self._is_inside:
            return self._reasoning.end
        return "" if self._has_begun else self._reasoning.begin


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`."""
    return next(n for n in range(min(len(text), len(mark) - 1), -1, -1) if text.endswith(mark[:n]))


class ReasonedStep(GenStep):
    """Generates on a branch of the stream, and continues the stream itself with the answer only."""

    def __init__(self, record: Record, call: GenerateCall, thoughts: Record, reasoning: Reasoning) -> None:
        super().__init__(record, call)
        self._thoughts, self._reasoning = thoughts, reasoning
        self._splitter = Splitter(reasoning)
        record.children = [thoughts]

    def start(self, executor: Executor) -> bool:
        self._thoughts.started, self._thoughts.status = self.record.started, "running"
        self._branch = executor.stream.fork(1)[0]
        try:
            return super().start(executor)
        except BaseException:
            self._branch.close()
            raise

    def call(self, stream: Stream, sink: Sink) -> PendingCall:  # noqa: ARG002 - thinks on the branch
        return super().call(self._branch, sink)

    def _failed(self, error: BaseException) -> None:
        if not self._may_try_again(error):
            self._branch.close()
            self._thoughts.status = "failed"
        super()._failed(error)

    def _delta(self, text: str) -> None:
        self._add(*self._splitter.push(text))
        self._executor.wake()

    def accept(self, result: object) -> None:
        assert isinstance(result, GenerateResult)
        thoughts, answer = Splitter(self._reasoning).push(result.text, is_last=True)
        self._branch.close()
        self._executor.stream.append_text(answer)
        super().accept(result._replace(text=answer))
        self.record.stream_usage = result.usage._replace(completion_tokens=0)  # the answer is text that is read again
        self._thoughts.text, self._thoughts.meta = thoughts, self.record.meta
        self._thoughts.ended, self._thoughts.status = time.perf_counter(), "done"

    def _add(self, thoughts: str, answer: str) -> None:
        self._thoughts.text += thoughts
        self.record.text += answer
