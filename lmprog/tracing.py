"""Tracing: what a program does, found by running its body once on placeholders, without a model.

User code runs when `program.trace()` or `program.cache()` is called, and never otherwise. Parameters of the program
that are not given, and all that a model would write, are placeholders. They can be put into texts. Where the program's
course would depend on one (`if s["x"] == ...`, `for q in questions`, `int(s["x"])`), NotTraceable names the line.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from lmprog import context
from lmprog.backends.base import Backend, Stream
from lmprog.context import RunContext
from lmprog.errors import NotTraceable
from lmprog.executor import Executor, Settings, Step
from lmprog.forks import Branches, BranchName, JoinMode, OnError, branch_names
from lmprog.graph import Graph, ends_prefix, prefix_of
from lmprog.location import program_line
from lmprog.nodes import Block, Gen, Node, Select, Text
from lmprog.operations import Append, End, Enter, Fork, Join, Leave, Op, Read, SetVariable
from lmprog.placeholders import Marks, Placeholder, Use
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.state import State
from lmprog.variables import Assigned, Variable

if TYPE_CHECKING:
    from lmprog.program import Program


def trace(program: Program[Any, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Graph:
    """The graph of a program. Arguments given are constants of it; the others are its parameters."""
    tracer = _Tracer(program)
    given = program.__signature__.bind_partial(*args, **{**program.bound, **kwargs})
    given.apply_defaults()
    call, parameters = tracer.arguments(given)
    tracer.run_body(call)
    return Graph(program, parameters, tracer.ops)


def constant_prefix(program: Program[Any, Any]) -> list[Node]:
    """Text and turns at the beginning that depend on no argument and no model. The body runs only as far as that."""
    tracer = _Tracer(program, stops_after_prefix=True)
    given = program.__signature__.bind_partial(**program.bound)
    given.apply_defaults()
    with contextlib.suppress(_PrefixEnds, NotTraceable):
        tracer.run_body(tracer.arguments(given)[0])
    return prefix_of(tracer.ops)


class _PrefixEnds(BaseException):  # no Exception: a program that catches those must not go on
    pass


class _NoModel(Backend):
    """Takes part in a trace so that nothing is refused; a model is never called."""

    name = "trace"

    def open_stream(self) -> Stream:
        raise NotTraceable(
            f"{program_line()}: a program that starts another run cannot be traced;", hint="write s.call(other, ...)."
        )

    def supports(self, parameter: str) -> bool:  # noqa: ARG002
        return True


class _TracedExecutor(Executor):
    """Never runs: a wait for it would have no end."""

    def refuse_to_deadlock(self) -> NoReturn:
        raise NotTraceable(
            f"{program_line()}: this waits for what {self.label} writes, which a trace does not know;",
            hint="run the program instead.",
        )


class _Tracer:
    def __init__(self, program: Program[Any, Any], *, stops_after_prefix: bool = False) -> None:
        self.program, self.marks = program, Marks()
        self.ops: list[Op] = []
        self._stops_after_prefix = stops_after_prefix
        self._states = self._references = 0

    def arguments(self, given: inspect.BoundArguments) -> tuple[inspect.BoundArguments, dict[str, int]]:
        """The call of the body, with placeholders for what is not given, and the number of each of those."""
        parameters: dict[str, int] = {}
        for name, parameter in self.program.__signature__.parameters.items():
            if name not in given.arguments and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                parameters[name] = self.next_reference()
                placeholder = self.marks.placeholder(Use(parameters[name]), f"the argument {name!r}")
                given.arguments[name] = placeholder
        return given, parameters

    def run_body(self, call: inspect.BoundArguments) -> None:
        run = RunContext(_NoModel(), Settings())
        root = TracedState(self, run, f"program {self.program.name!r}", {})
        token = context.current.set(run)
        try:
            result = self.program.function(root, *call.args, **call.kwargs)
        finally:
            context.current.reset(token)
        if inspect.iscoroutine(result):
            result.close()
            raise NotTraceable(f"{self.program.name} is an async program, whose course a trace cannot follow.")

    def next_state(self) -> int:
        self._states += 1
        return self._states - 1

    def next_reference(self) -> int:
        self._references += 1
        return self._references - 1

    def add(self, op: Op) -> None:
        self.ops.append(op)
        if self._stops_after_prefix and ends_prefix(op):
            raise _PrefixEnds


class TracedState(State):
    """What a program gets for `s` while it is traced: it notes what is appended and never waits."""

    def __init__(
        self, tracer: _Tracer, run: RunContext, label: str, variables: dict[str, Variable], open_role: str | None = None
    ) -> None:
        executor = _TracedExecutor(label, run.settings, Record("program", label))
        none = Sampling()
        super().__init__(run, executor, stronger=none, weaker=none, variables=variables, open_role=open_role)
        self._tracer, self.number = tracer, tracer.next_state()
        self._list_lengths: dict[str, int] = {}  # of variables that hold lists

    # -- appending ------------------------------------------------------------------------------------------------

    def _append(self, node: Node, location: str) -> None:
        super()._append(node, location)  # checks, declares variables
        for part in node.nodes if isinstance(node, Block) else (node,):
            self._note(part, location)

    def _note(self, node: Node, location: str) -> None:
        template = None
        if isinstance(node, Text):
            if not node.text:
                return
            if not self._tracer.marks.is_constant(node.text):
                template = self._tracer.marks.split(node.text)
        elif not all(map(self._tracer.marks.is_constant, _texts_of(node))):
            raise NotTraceable(f"{location}: a trace can put unknown values into texts only, not into gen or select.")
        if isinstance(node, Gen) and node.name is not None and (node.sampling.n or 1) > 1:
            self._list_lengths[node.name] = node.sampling.n or 1
        elif isinstance(node, Gen | Select) and node.name is not None:
            self._list_lengths.pop(node.name, None)
        self._tracer.add(Append(self.number, node, template, location))

    def _submit(self, step: Step) -> None:
        if self._executor.is_ended:
            super()._submit(step)  # refuses
        self._appended += 1

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        marks = self._tracer.marks
        template = None
        if _has_mark(marks, value):
            if not isinstance(value, str):
                raise NotTraceable(f"{program_line()}: a list or dict with unknown values in it cannot be traced.")
            template = marks.split(value)
        self._tracer.add(SetVariable(self.number, name, None if template else value, template))

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        self._tracer.add(Enter(self.number, "scope", name))
        with super().var_scope(name):
            yield
        self._tracer.add(Leave(self.number))

    @contextlib.contextmanager
    def with_defaults(self, sampling: Sampling) -> Iterator[None]:
        self._tracer.add(Enter(self.number, "defaults", sampling))
        with super().with_defaults(sampling):
            yield
        self._tracer.add(Leave(self.number))

    # -- reading --------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        variable = self._variable(name)
        if isinstance(variable, Assigned):
            return variable.get()
        length = self._list_lengths.get(name)
        if length is None:
            return self._placeholder(name, None)
        return [self._placeholder(name, index) for index in range(length)]

    def _placeholder(self, name: str, index: int | None) -> Placeholder:
        reference = self._tracer.next_reference()
        self._tracer.add(Read(self.number, name, index, reference))
        what = f"the variable {name!r}" if index is None else f"item {index} of the variable {name!r}"
        return self._tracer.marks.placeholder(Use(reference), what)

    # -- branches -------------------------------------------------------------------------------------------------

    def _branch(self, name: BranchName, own: Sampling) -> State:  # noqa: ARG002 - `_group` notes it
        variables = {key: variable.for_branch(key) for key, variable in self._variables.items()}
        branch = TracedState(
            self._tracer, self._run, f"{self._executor.label}, branch {name!r}", variables, self._open_role
        )
        branch._list_lengths = dict(self._list_lengths)
        self._below.append(branch)
        return branch

    def _group(self, names: Sequence[BranchName], states: Sequence[State], common: Sampling) -> Branches:
        return _TracedBranches(self, names, states, common)

    def fork(
        self,
        branches: int | Sequence[BranchName] = 1,
        *,
        sampling: Sequence[Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Branches:
        group = super().fork(branches, sampling=sampling, **shared)
        children = tuple(state.number for state in group if isinstance(state, TracedState))
        own = None if sampling is None else tuple(dict(each) for each in sampling)
        names = tuple(branch_names(branches))
        self._tracer.add(Fork(self.number, names, children, own, dict(shared)))
        return group


class _TracedBranches(Branches):
    def join(self, mode: JoinMode = "gather_variable", on_error: OnError = "raise") -> None:
        super().join(mode, on_error)
        parent, children = self._parent, [s for s in self if isinstance(s, TracedState)]
        assert isinstance(parent, TracedState)
        if mode == "gather_variable":
            changed = [name for child in children for name in child._changed]
            parent._list_lengths.update(dict.fromkeys(changed, len(children)))
        numbers = tuple(child.number for child in children)
        parent._tracer.add(Join(parent.number, numbers, mode, on_error))

    def end(self) -> None:
        super().end()
        parent = self._parent
        assert isinstance(parent, TracedState)
        numbers = tuple(child.number for child in self if isinstance(child, TracedState))
        parent._tracer.add(End(parent.number, numbers))

    def grow(self, branches: int | Sequence[BranchName] = 1) -> list[State]:  # noqa: ARG002
        raise NotTraceable(f"{program_line()}: a group that grows cannot be traced; fork all branches at once.")


def _texts_of(node: Node) -> list[str]:
    """All texts that a gen or select depends on."""
    if isinstance(node, Select):
        return list(node.choices)
    if not isinstance(node, Gen):
        return []
    constraint = [node.constraint.source] if node.constraint else []
    return [*(node.sampling.stop or ()), node.sampling.stop_regex or "", *constraint]


def _has_mark(marks: Marks, value: Any) -> bool:
    if isinstance(value, str):
        return not marks.is_constant(value)
    if isinstance(value, Mapping):
        return any(_has_mark(marks, each) for pair in value.items() for each in pair)
    return isinstance(value, list | tuple) and any(_has_mark(marks, each) for each in value)
