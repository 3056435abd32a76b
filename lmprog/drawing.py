"""Graphs to look at: as text, as HTML and as SVG."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from lmprog.nodes import Gen, RoleBegin, RoleEnd, Select, Special, Text
from lmprog.operations import Append, Enter, Fork, Join, Op, SetVariable

if TYPE_CHECKING:
    from lmprog.graph import Graph

_STYLE = "font-family:monospace;white-space:pre-wrap;border-left:2px solid #8ac;padding-left:6px"


def as_text(graph: Graph) -> str:
    head = f"{graph.name}({', '.join(graph.parameters)})"
    moved = [f"  moved  {each}" for each in graph.moved]
    return "\n".join([head, *_lines_of(graph, 0, "  "), *moved])


def as_html(graph: Graph) -> str:
    moved = "".join(f"<div><i>moved</i> {html.escape(each)}</div>" for each in graph.moved)
    return f'<div style="{_STYLE}"><b>{html.escape(graph.name)}</b>{_html_of(graph, 0)}{moved}</div>'


def _label_of(graph: Graph, op: Op) -> tuple[str, str] | None:
    """(kind, details) of an operation that is worth showing."""
    if isinstance(op, Append):
        return _label_of_node(graph, op)
    if isinstance(op, SetVariable):
        value = op.value if op.template is None else graph.describe(op.template)
        return "set", f"{op.name} = {value!r}"
    if isinstance(op, Fork):
        return "fork", f"into {len(op.children)}"
    if isinstance(op, Join):
        return "join", f"{op.mode}, on_error={op.on_error}"
    return ("scope", op.value) if isinstance(op, Enter) and op.kind == "scope" else None


def _label_of_node(graph: Graph, op: Append) -> tuple[str, str]:
    node = op.node
    if op.template is not None:
        return "text", repr(graph.describe(op.template))
    if isinstance(node, Text):
        return "text", repr(node.text)
    if isinstance(node, Gen):
        return "gen" if node.beam is None else "beam", _details_of(node)
    if isinstance(node, Select):
        return "select", f"{node.name or ''} {list(node.choices)} by {node.method.name}"
    if isinstance(node, RoleBegin | RoleEnd):
        return ("turn" if isinstance(node, RoleBegin) else "end", node.role)
    assert isinstance(node, Special)
    return "special", node.token


def _details_of(node: Gen) -> str:
    form = [f"{node.constraint.kind} {node.constraint.source}"] if node.constraint else []
    settings = {**node.sampling.given(), **(node.beam._asdict() if node.beam else {})}
    return " ".join([node.name or "", *(f"{name}={value!r}" for name, value in settings.items()), *form])


def _lines_of(graph: Graph, state: int, indent: str) -> Iterator[str]:
    for op in graph.of_state(state):
        if (label := _label_of(graph, op)) is None:
            continue
        yield f"{indent}{label[0]:<6} {label[1]}".rstrip()
        if isinstance(op, Fork):
            for name, child in zip(op.names, op.children, strict=True):
                yield f"{indent}  branch {name!r}"
                yield from _lines_of(graph, child, indent + "    ")


def _html_of(graph: Graph, state: int) -> str:
    parts = []
    for op in graph.of_state(state):
        if (label := _label_of(graph, op)) is None:
            continue
        parts.append(f"<div><i>{label[0]}</i> {html.escape(label[1])}</div>")
        if isinstance(op, Fork):
            branches = (
                f'<div style="{_STYLE}"><b>{html.escape(str(name))}</b>{_html_of(graph, child)}</div>'
                for name, child in zip(op.names, op.children, strict=True)
            )
            parts.append(f'<div style="display:flex;gap:12px">{"".join(branches)}</div>')
    return "".join(parts)


# -- SVG ----------------------------------------------------------------------------------------------------------

_BOX_WIDTH, _BOX_HEIGHT, _GAP, _MARGIN = 260, 24, 12, 16
_CHARACTERS = 36  # that fit into a box
_COLOURS = {
    "gen": "#d5e8d4",
    "beam": "#d5e8d4",
    "select": "#d5e8d4",
    "fork": "#dae8fc",
    "join": "#dae8fc",
    "set": "#fff2cc",
}
_SVG_STYLE = (
    "text{font:12px monospace;fill:#111}rect{stroke:#667;rx:4}path{stroke:#667;fill:none;marker-end:url(#arrow)}"
)
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<polygon points="0,0 8,4 0,8" fill="#667"/></marker>'
)


class _Box(NamedTuple):
    x: int
    y: int
    kind: str
    details: str

    @property
    def middle(self) -> int:
        return self.x + _BOX_WIDTH // 2

    @property
    def bottom(self) -> int:
        return self.y + _BOX_HEIGHT


class _Arrow(NamedTuple):
    start: tuple[int, int]
    end: tuple[int, int]


class _Drawing:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.boxes: list[_Box] = []
        self.arrows: list[_Arrow] = []
        self._last: dict[int, _Box] = {}  # of each state

    def column(self, state: int, title: str, x: int, y: int) -> tuple[int, int]:
        """Draw a state from there on. Returns where free space begins to the right and below."""
        self._box(state, x, y, "branch" if state else "program", title)
        right, below = x + _BOX_WIDTH, y + _BOX_HEIGHT
        for op in self._graph.of_state(state):
            if (label := _label_of(self._graph, op)) is None:
                continue
            box = self._box(state, x, below + _GAP, *label)
            below = box.bottom
            if isinstance(op, Fork):
                right, below = self._branches(op, box, right)
            if isinstance(op, Join):
                ends = (self._last[child] for child in op.children)
                self.arrows += [_Arrow((end.middle, end.bottom), (x + _BOX_WIDTH, box.y + 12)) for end in ends]
        return right, below

    def _branches(self, fork: Fork, box: _Box, right: int) -> tuple[int, int]:
        """Beside each other, right of all that is there."""
        below = box.bottom
        for name, child in zip(fork.names, fork.children, strict=True):
            x = right + 2 * _GAP
            self.arrows.append(_Arrow((box.x + _BOX_WIDTH, box.y + 12), (x, box.y + 12)))
            right, end = self.column(child, str(name), x, box.y)
            below = max(below, end)
        return right, below

    def _box(self, state: int, x: int, y: int, kind: str, details: str) -> _Box:
        box = _Box(x, y, kind, details)
        if state in self._last:
            self.arrows.append(_Arrow((box.middle, self._last[state].bottom), (box.middle, y)))
        self.boxes.append(box)
        self._last[state] = box
        return box


def as_svg(graph: Graph) -> str:
    drawing = _Drawing(graph)
    right, below = drawing.column(0, graph.name, _MARGIN, _MARGIN)
    width, height = right + _MARGIN, below + _MARGIN
    parts = itertools.chain(map(_svg_of_arrow, drawing.arrows), map(_svg_of_box, drawing.boxes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<style>{_SVG_STYLE}</style><defs>{_ARROW}</defs>{''.join(parts)}</svg>\n"
    )


def _svg_of_arrow(arrow: _Arrow) -> str:
    (x1, y1), (x2, y2) = arrow
    return f'<path d="M{x1},{y1} L{x2},{y2}"/>'


def _svg_of_box(box: _Box) -> str:
    label = f"{box.kind} {box.details}".strip()
    shown = label if len(label) <= _CHARACTERS else f"{label[: _CHARACTERS - 1]}…"
    return (
        f'<g><title>{_escaped(label)}</title><rect x="{box.x}" y="{box.y}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" fill="{_COLOURS.get(box.kind, "#fff")}"/>'
        f'<text x="{box.x + 6}" y="{box.y + 16}">{_escaped(shown)}</text></g>'
    )


def _escaped(text: str) -> str:
    """XML has no place for control characters, escaped or not."""
    return html.escape("".join(c if c.isprintable() else "\ufffd" for c in text))
