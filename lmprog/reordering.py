"""`graph.reordered()`: constant paragraphs before those that have values in them.

What is constant can be computed once for all runs of a batch, but only as far as everything before it is constant too.
Whether a paragraph means the same in another place, nobody can know but the author; so nothing calls this by itself.
Source of the idea: SGLang (arXiv 2312.07104), appendix on code movement for prefix sharing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lmprog.nodes import RoleBegin, Text
from lmprog.operations import Append, Op, Read

if TYPE_CHECKING:
    from lmprog.graph import Graph


def reorder(graph: Graph) -> tuple[list[Op], list[str]]:
    """(operations, what moved in words)."""
    ops: list[Op] = []
    moved: list[str] = []
    for is_text, run in itertools.groupby(graph.ops, _run_of):
        part = list(run)
        if is_text is not None:
            part, words = _reordered(graph, part, _begins_line(ops, part[0].state))
            moved += words
        ops += part
    return ops, moved


def _run_of(op: Op) -> int | None:
    """The state whose text an operation belongs to. Runs of these are what may be reordered."""
    is_text = isinstance(op, Append) and isinstance(op.node, Text)
    return op.state if is_text or isinstance(op, Read) else None


def _begins_line(before: Sequence[Op], state: int) -> bool:
    """Whether what comes next is the beginning of the prompt or of a turn, and not the rest of a line."""
    own = [op for op in before if op.state == state and isinstance(op, Append)]
    return isinstance(own[-1].node, RoleBegin) if own else state == 0


def _reordered(graph: Graph, run: list[Op], begins_line: bool) -> tuple[list[Op], list[str]]:
    paragraphs = list(_paragraphs(run))
    pinned = [] if begins_line else paragraphs[:1]
    rest = paragraphs[len(pinned) :]
    first = next((i for i, paragraph in enumerate(rest) if not _may_move(paragraph)), len(rest))
    movable = [p for p in rest[first:] if _may_move(p)]
    others = [p for p in rest[first:] if not _may_move(p)]
    order = [*pinned, *rest[:first], *movable, *others]
    words = [f"{_shown(graph, p)} before {_shown(graph, others[0])}" for p in movable]
    return [op for paragraph in order for op in paragraph], words


def _paragraphs(run: list[Op]) -> Iterator[list[Op]]:
    """Operations up to the end of a line each; the last may end within one."""
    paragraph: list[Op] = []
    for op in run:
        paragraph.append(op)
        if isinstance(op, Append) and _ends_line(op):
            yield paragraph
            paragraph = []
    if paragraph:
        yield paragraph


def _ends_line(op: Append) -> bool:
    if op.template is not None:
        last = op.template[-1]
        return isinstance(last, str) and last.endswith("\n")
    return isinstance(op.node, Text) and op.node.text.endswith("\n")


def _may_move(paragraph: list[Op]) -> bool:
    """Whole lines without any value."""
    texts = [op for op in paragraph if isinstance(op, Append)]
    return len(texts) == len(paragraph) and all(op.template is None for op in texts) and _ends_line(texts[-1])


def _shown(graph: Graph, paragraph: list[Op]) -> str:
    texts = (_text_of(graph, op) for op in paragraph if isinstance(op, Append))
    return repr("".join(texts))


def _text_of(graph: Graph, op: Append) -> str:
    if op.template is not None:
        return graph.describe(op.template)
    return op.node.text if isinstance(op.node, Text) else ""
