"""The graph of a traced program: it prints, draws itself as HTML and SVG, and runs without the program's Python code.

Its operations stand in program order, each with the number of the state it is for (0: the root). When it runs, all of
it is handed to the executors at once: a text that needs a value of another branch waits for it there, not in a thread.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from lmprog import drawing
from lmprog.backends.base import Backend
from lmprog.errors import InvalidArgument
from lmprog.executor import Executor
from lmprog.forks import Branches
from lmprog.nodes import Gen, Node, RoleBegin, RoleEnd, Select, Text
from lmprog.operations import Append, End, Enter, Fork, Join, Leave, Op, Read, SetVariable
from lmprog.placeholders import Template, Use
from lmprog.program import Program, Run, SyncProgram, warm
from lmprog.record import Record
from lmprog.reordering import reorder
from lmprog.settings import default_backend
from lmprog.state import State
from lmprog.steps import WaitStep
from lmprog.variables import Assigned, Computed, Variable


class Graph:
    """What `program.trace()` returns. `parameters` are the arguments that it still needs, in order."""

    def __init__(
        self, program: Program[Any, Any], parameters: Mapping[str, int], ops: Sequence[Op], moved: Sequence[str] = ()
    ) -> None:
        self.name, self.parameters, self.ops = program.name, tuple(parameters), tuple(ops)
        self.moved = tuple(moved)  # what `reordered` has done, in words
        self.traced = program
        self.references = dict(parameters)
        self.program = GraphProgram(self, program)

    def run(self, **values: Any) -> Run[None]:
        """Run the graph. Takes its parameters by keyword, and the options of `Program.run`."""
        return self.program.run(**values)

    def run_batch(self, items: Iterable[Mapping[str, Any]], *, warms_prefix: bool = False, **options: Any) -> Any:
        """Run the graph on each item, a dict of its parameters. See `lmprog.batching.run_batch`.

        warms_prefix: first compute the constant beginning once, so that no item waits for another to do it.
        """
        if warms_prefix:
            self.program.cache(options.get("backend"))
        return self.program.run_batch(items, **options)

    def reordered(self) -> Graph:
        """The graph with constant paragraphs before those with values in them, so that more runs share more.

        This changes the prompt, and so it is only done when asked for: `moved` says what stands elsewhere now, and
        `print(graph)` shows it. Only whole lines of constant text move, only inside a turn, never over a gen, select,
        fork or variable, and text with a value in it keeps its place among such.
        """
        ops, moved = reorder(self)
        return Graph(self.traced, self.references, ops, (*self.moved, *moved))

    def constant_prefix(self) -> list[Node]:
        """Text and turns at the beginning that depend on no parameter and no model."""
        return prefix_of(self.ops)

    def variables(self) -> list[str]:
        """Names that the graph sets, in all states, in program order."""
        return list(dict.fromkeys(name for op in self.ops if (name := _name_set_by(op)) is not None))

    def __str__(self) -> str:
        return drawing.as_text(self)

    def _repr_html_(self) -> str:
        return drawing.as_html(self)

    def svg(self) -> str:
        """A drawing: states from top to bottom, branches to the right of their fork, joins as arrows back."""
        return drawing.as_svg(self)

    def describe(self, template: Template) -> str:
        """A text with the names of its values in braces."""
        return "".join(piece if isinstance(piece, str) else f"{{{self._name_of(piece)}}}" for piece in template)

    def _name_of(self, use: Use) -> str:
        for name, reference in self.references.items():
            if reference == use.reference:
                return name
        read = next(op for op in self.ops if isinstance(op, Read) and op.reference == use.reference)
        branch = "" if read.state == 0 else f"{self.branch_name(read.state)}."
        return f"{branch}{read.name}" + ("" if read.index is None else f"[{read.index}]")

    def branch_name(self, state: int) -> str:
        fork = next(op for op in self.ops if isinstance(op, Fork) and state in op.children)
        return str(fork.names[fork.children.index(state)])

    def of_state(self, state: int) -> list[Op]:
        return [op for op in self.ops if op.state == state]


class GraphProgram(SyncProgram[..., None]):
    """A graph as a program, with the graph's parameters: `run`, `run_batch`, `arun` and the rest."""

    def __init__(self, graph: Graph, traced: Program[Any, Any]) -> None:
        self.graph = graph

        def replay(s: State, **values: Any) -> None:
            _Replay(s, {graph.references[name]: value for name, value in values.items()}).perform(graph.ops)

        replay.__name__ = replay.__qualname__ = graph.name
        keyword, own = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY
        names = [inspect.Parameter("s", own), *(inspect.Parameter(name, keyword) for name in graph.parameters)]
        replay.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        super().__init__(replay, traced.sampling, traced.options, {})

    def __get__(self, instance: object | None, owner: type | None = None) -> GraphProgram:
        """In a class too: a graph has its state alone, and no place for an instance."""
        return self

    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        if args or kwargs or self.bound:
            raise InvalidArgument(f"{self.name} is a graph already; give the values when you trace the program itself.")
        return self.graph

    def cache(self, backend: Backend | None = None) -> str:
        return warm(self.graph.constant_prefix(), backend or self.options.backend or default_backend())


def ends_prefix(op: Op) -> bool:
    """Whether an operation depends on something that is not known before a run, or is no text and no turn."""
    if isinstance(op, Append):
        return op.template is not None or not isinstance(op.node, Text | RoleBegin | RoleEnd)
    return not isinstance(op, SetVariable | Enter | Leave)


def prefix_of(ops: Iterable[Op]) -> list[Node]:
    nodes: list[Node] = []
    for op in ops:
        if ends_prefix(op):
            if isinstance(op, Append) and op.template is not None and isinstance(op.template[0], str):
                nodes.append(Text(op.template[0]))
            break
        if isinstance(op, Append):
            nodes.append(op.node)
    return nodes


def _name_set_by(op: Op) -> str | None:
    if isinstance(op, Append) and isinstance(op.node, Gen | Select):
        return op.node.name
    if isinstance(op, SetVariable):
        return op.name
    return str(op.value) if isinstance(op, Enter) and op.kind == "scope" else None


# -- running ------------------------------------------------------------------------------------------------------


class _Value(NamedTuple):
    owner: State
    variable: Variable


class _Filling(NamedTuple):
    use: Use
    value: _Value


_Piece: TypeAlias = "str | _Filling"


class _Replay:
    """Does the operations on real states."""

    def __init__(self, root: State, arguments: Mapping[int, Any]) -> None:
        self._states = {0: root}
        self._values = {reference: _Value(root, Assigned(value)) for reference, value in arguments.items()}
        self._groups: dict[tuple[int, ...], Branches] = {}
        self._entered: list[contextlib.AbstractContextManager[None]] = []

    def perform(self, ops: Iterable[Op]) -> None:
        for op in ops:
            getattr(self, f"_do_{type(op).__name__.lower()}")(self._states[op.state], op)

    def _do_append(self, state: State, op: Append) -> None:
        if op.template is None:
            state._append(op.node, op.location)
        else:
            state._submit(_TemplateStep(Record("text", location=op.location), self._pieces(op.template)))

    def _do_read(self, state: State, op: Read) -> None:
        whole, index = state._variable(op.name), op.index
        if index is None:
            self._values[op.reference] = _Value(state, whole)
        else:
            item = Computed(lambda: whole.is_ready, lambda: whole.get()[index])
            self._values[op.reference] = _Value(state, item)

    def _do_setvariable(self, state: State, op: SetVariable) -> None:
        if op.template is None:
            state[op.name] = op.value
            return
        pieces = self._pieces(op.template)
        state._declare(op.name, Computed(lambda: all(map(_is_ready, pieces)), lambda: _filled(pieces)))

    def _do_fork(self, state: State, op: Fork) -> None:
        group = state.fork(list(op.names), sampling=op.own_sampling, **op.shared_sampling)
        self._groups[op.children] = group
        self._states.update(zip(op.children, group, strict=True))

    def _do_join(self, _: State, op: Join) -> None:
        self._groups[op.children].join(op.mode, op.on_error)

    def _do_end(self, _: State, op: End) -> None:
        self._groups[op.children].end()

    def _do_enter(self, state: State, op: Enter) -> None:
        scope = state.var_scope(op.value) if op.kind == "scope" else state.with_defaults(op.value)
        scope.__enter__()
        self._entered.append(scope)

    def _do_leave(self, _: State, __: Leave) -> None:
        self._entered.pop().__exit__(None, None, None)

    def _pieces(self, template: Template) -> list[_Piece]:
        return [p if isinstance(p, str) else _Filling(p, self._values[p.reference]) for p in template]


def _is_ready(piece: _Piece) -> bool:
    return isinstance(piece, str) or piece.value.variable.is_ready


def _filled(pieces: Sequence[_Piece]) -> str:
    return "".join(p if isinstance(p, str) else p.use.apply(p.value.variable.get()) for p in pieces)


class _TemplateStep(WaitStep):
    """A text with values that other states may still be making."""

    def __init__(self, record: Record, pieces: Sequence[_Piece]) -> None:
        super().__init__(record, (), fails_early=True)
        self._pieces = pieces

    def start(self, executor: Executor) -> bool:
        owners = {piece.value.owner._executor for piece in self._pieces if not isinstance(piece, str)}
        self._wait_for([owner for owner in owners if owner is not executor])
        return super().start(executor)

    def is_over(self, branch: Executor) -> bool:
        own = (p for p in self._pieces if not isinstance(p, str) and p.value.owner._executor is branch)
        return branch.failure is not None or all(map(_is_ready, own))

    def succeed(self, executor: Executor) -> None:
        self.record.text = _filled(self._pieces)
        executor.stream.append_text(self.record.text)
        executor.transcript.append(self.record)
