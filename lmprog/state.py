"""The state of one run or one branch: what a program holds as `s`.

Appending never waits for the model. Reading waits, and gives the value or the original error. What a state does is in
`lmprog.steps`, when it does it in `lmprog.executor`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lmprog import appending, arguments, context, streaming, transcript
from lmprog.backends.base import Usage
from lmprog.context import RunContext
from lmprog.errors import Cancelled, InvalidArgument, UnknownVariable
from lmprog.executor import Executor, Step
from lmprog.forks import Branches, BranchName, branch_names
from lmprog.location import program_line
from lmprog.nodes import Appendable, Node, RoleBegin, RoleEnd, as_node
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.steps import ForkStep, ScopeBegin, ScopeEnd
from lmprog.transcript import Message
from lmprog.variables import Assigned, Variable, Written, known_names
from lmprog.waiting import Predicate

if TYPE_CHECKING:
    from lmprog.program import AsyncProgram, Program, SyncProgram

S = TypeVar("S", bound="State")
R = TypeVar("R")


class State:
    """Append with `s += ...`; read with `s["name"]`, `s.text()`, `s.messages()`.

    Once a step has failed, every read raises that step's error.
    """

    def __init__(
        self,
        run: RunContext | None,
        executor: Executor,
        *,
        stronger: Sampling,
        weaker: Sampling,
        variables: dict[str, Variable],
        open_role: str | None = None,
        path: tuple[int, ...] = (),
    ) -> None:
        self._context = run  # None: the run is over
        self._executor = executor
        self._stronger, self._weaker = stronger, weaker  # sampling by forks and run; by @function and backend
        self._sampling = stronger.over(weaker)  # what holds for steps that do not say themselves
        self._variables = variables
        self._open_role = open_role
        self._path = path
        self._below: list[State] = []  # branches, and runs that the program started
        self._forked = 0
        self._appended = 0
        self._changed: frozenset[str] = frozenset()  # names set here, not inherited

    @property
    def _run(self) -> RunContext:
        if self._context is None:
            raise InvalidArgument(f"{self._executor.label} is over: it can only be read.")
        return self._context

    def __repr__(self) -> str:
        """Never waits."""
        executor = self._executor
        return f"<{executor.label}: {executor.record.status}, {len(executor.steps_taken)} steps>"

    @property
    def streams(self) -> bool:
        """Whether the run was started with stream=True."""
        return self._run.settings.wants_deltas

    # -- appending ------------------------------------------------------------------------------------------------

    def __iadd__(self: S, other: Appendable | Callable[[S], Any]) -> S:
        """Append text, nodes, lists of them, or a function, which is called with this state; what it returns, if
        anything, is appended too."""
        if callable(other):
            returned = other(self)
            if returned is None or returned is self:
                return self
            other = returned
        self._append(as_node(other), program_line())
        return self

    def _append(self, node: Node, location: str) -> None:
        appending.append(self, node, location)

    def _submit(self, step: Step) -> None:
        if self._executor.is_ended:
            raise InvalidArgument(f"Nothing can be appended to {self._executor.label} any more: it has ended.")
        self._appended += 1
        self._executor.steps_taken.append(step.record)
        self._executor.append(step)

    def _declare(self, name: str | None, variable: Variable) -> None:
        if name is not None:
            self._variables[name] = variable
            self._changed |= {name}
            self._executor.wake()

    # -- turns and scopes -----------------------------------------------------------------------------------------

    def role(self, name: str, expr: Appendable | None = None) -> Any:
        """A turn: `s.role("tool", text)` writes a whole one, `with s.role("tool"):` what is appended inside."""
        if expr is None:
            return self._turn(name)
        self._append(RoleBegin(name) + as_node(expr) + RoleEnd(name), program_line())
        return None

    def system(self, expr: Appendable | None = None) -> Any:
        return self.role("system", expr)

    def user(self, expr: Appendable | None = None) -> Any:
        return self.role("user", expr)

    def assistant(self, expr: Appendable | None = None) -> Any:
        return self.role("assistant", expr)

    @contextlib.contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        self._append(RoleBegin(name), program_line())
        yield
        self._append(RoleEnd(name), program_line())

    @contextlib.contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """`with s.var_scope("answer"):` - the text appended inside becomes the variable."""
        record = Record("scope", arguments.variable_name(name) or "", location=program_line())
        begin = ScopeBegin(Record("scope", name, location=record.location))
        self._submit(begin)
        yield
        self._declare(name, Written(name, record))
        self._submit(ScopeEnd(record, begin))

    # -- reading --------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The value of a variable. Waits for it; raises the state's failure, or UnknownVariable."""
        variable = self._find(name)
        self._executor.wait(lambda: variable.is_ready)
        return variable.get()

    async def aget(self, name: str) -> Any:
        """`s[name]` for `async def` programs."""
        await self._executor.wait_async(lambda: self._is_declared(name))
        variable = self._variable(name)
        await self._executor.wait_async(lambda: variable.is_ready)
        return variable.get()

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a variable from Python. Branches made later see a copy."""
        self._declare(arguments.variable_name(name), Assigned(value))

    def __contains__(self, name: object) -> bool:
        """Whether a step or an assignment sets this variable. Does not wait for its value."""
        return name in self._variables

    def variables(self) -> list[str]:
        """The names set so far, in order."""
        return list(self._variables)

    def text(self) -> str:
        """All text so far: of the program, generated, and turns as `lmprog.chat` renders them."""
        self._executor.wait(self._is_read_whole)
        return transcript.as_text(self._executor.transcript)

    def messages(self) -> list[Message]:
        """The turns so far as {"role", "content"}; one that is still open has "partial": True."""
        self._executor.wait(self._is_read_whole)
        return transcript.as_messages(self._executor.transcript)

    def sync(self) -> None:
        """Wait until all that was appended has run."""
        self._executor.wait(self._is_read_whole)

    def error(self) -> BaseException | None:
        """Wait, and give what the state failed with, or None."""
        self._executor.settle(self._is_read_whole)
        return self._executor.failure

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """What is known of the step that set a variable: finish_reason, matched_stop, usage, logprobs, scores, ..."""
        record = self._record_of(name)
        self._executor.wait(lambda: record.status == "done")
        return record.meta_info()

    def tree(self) -> str:
        """The run as a tree for terminals: what each step read, reused and wrote. Waits like `record`."""
        from lmprog.report import render_tree

        return render_tree(self.record)

    def _repr_html_(self) -> str:
        from lmprog.report import render_html

        return render_html(self.record, as_page=False)

    def trace_events(self) -> list[dict[str, Any]]:
        """The run in the Chrome trace format, see `lmprog.trace_events`. Waits like `record`."""
        from lmprog.report import trace_events

        return trace_events(self.record)

    @property
    def usage(self) -> Usage:
        """Token counts of this state, its branches and the runs that it called. Waits for them; never raises."""
        return self.record.total_usage()

    @property
    def record(self) -> Record:
        """All that happened, as a tree (see `lmprog.record`). Waits until it has; never raises."""
        self._settle()
        return self._executor.record

    def __await__(self: S) -> Generator[Any, None, S]:
        """`await s`: wait until all that was appended, also to branches, has run."""
        return self._awaited().__await__()

    async def _awaited(self: S) -> S:
        await self.settled()
        self._executor.raise_failure()
        return self

    async def settled(self) -> None:
        """`await s` that does not raise."""
        for state in self._family():
            await state._executor.settle_async(state._is_read_whole)

    def _settle(self) -> None:
        for state in self._family():
            state._executor.settle(state._is_read_whole)

    def _family(self) -> Iterator[State]:
        yield self
        for each in tuple(self._below):
            yield from each._family()

    def _find(self, name: str) -> Variable:
        self._executor.wait(lambda: self._is_declared(name))
        return self._variable(name)

    def _is_declared(self, name: str) -> bool:
        return name in self._variables or not self._may_still_grow()

    def _variable(self, name: str) -> Variable:
        if name not in self._variables:
            raise UnknownVariable(
                f"{self._executor.label} has no variable {name!r};", hint=f"it has {known_names(self._variables)}."
            )
        return self._variables[name]

    def _record_of(self, name: str) -> Record:
        record = self._find(name).record
        if record is None:
            raise InvalidArgument(f"{name!r} was not written by a step of {self._executor.label}.")
        return record

    def _may_still_grow(self) -> bool:
        """Read from outside while the program's body runs in another thread or task."""
        run = self._context
        return run is not None and run.is_body_running and context.current.get() is not run

    def _is_read_whole(self) -> bool:
        return self._executor.is_idle and not self._may_still_grow()

    # -- streaming ------------------------------------------------------------------------------------------------

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """The text piece by piece as it comes, or only what the step that sets `var` writes.

        With `run(stream=True)` the pieces are as small as the backend sends them, else one per step.
        """
        cursor, is_over = self._cursor(None if var is None else self._record_of(var))
        return streaming.pieces(self._executor, cursor, is_over)

    async def text_async_iter(self, var: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for `async for`. With return_meta_data, pairs of the piece and `get_meta_info(var)` so far."""
        record = None
        if var is not None:
            await self._executor.wait_async(lambda: self._is_declared(var))
            record = self._record_of(var)
        elif return_meta_data:
            raise InvalidArgument("return_meta_data needs the variable whose meta data you want.")
        cursor, is_over = self._cursor(record)
        async for piece in streaming.pieces_async(self._executor, cursor, is_over):
            yield (piece, record.meta_info()) if return_meta_data and record is not None else piece

    def object_iter(self, var: str) -> Iterator[Any]:
        """What is known of a JSON variable while it is written: dicts and lists that grow, then the final value.

        Yields plain JSON data whenever more is known. Afterwards `s[var]` has the value in its own type.
        """
        from lmprog.schema import partial_json

        text, known = "", None
        for piece in self.text_iter(var):
            text += piece
            if (value := partial_json(text)) != known:
                known = value
                yield value

    def _cursor(self, record: Record | None) -> tuple[streaming.Cursor, Predicate]:
        if record is None:
            return streaming.TranscriptCursor(self._executor), self._is_read_whole
        return streaming.RecordCursor(record), lambda: record.status == "done"

    # -- branches and calls ---------------------------------------------------------------------------------------

    def fork(
        self,
        branches: int | Sequence[BranchName] = 1,
        *,
        sampling: Sequence[Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Branches:
        """Branches that start as this state is now, and share its prefix. Also a context manager, see `Branches`.

        branches: how many, or their names. shared: sampling parameters for all branches (`temperature=1.0`);
        sampling: one dict of them for each branch, stronger than `shared`. Both are weaker than what a gen says, and
        stronger than what `run` says. A seed is combined with the branch's path, so branches differ and repeat.
        Variables are copied: what a branch changes, others do not see. This state can go on meanwhile.
        """
        names = branch_names(branches)
        common, own = arguments.checked_sampling("fork", shared), self._sampling_of_branches(sampling, len(names))
        record = Record("fork", location=program_line())
        states = [self._branch(name, layer.over(common)) for name, layer in zip(names, own, strict=True)]
        record.children = [state._executor.record for state in states]
        self._submit(ForkStep(record, [state._executor for state in states]))
        return self._group(names, states, common)

    def _group(self, names: Sequence[BranchName], states: Sequence[State], common: Sampling) -> Branches:
        return Branches(self, names, states, common)

    def _sampling_of_branches(self, given: Sequence[Mapping[str, Any]] | None, count: int) -> list[Sampling]:
        if given is None:
            return [Sampling()] * count
        if len(given) != count:
            raise InvalidArgument(f"sampling has {len(given)} items for {count} branches; give one for each.")
        return [arguments.checked_sampling("fork", each) for each in given]

    def _branch(self, name: BranchName, own: Sampling) -> State:
        self._run.require_sampling(own)
        label = f"{self._executor.label}, branch {name!r}"
        executor = Executor(label, self._run.settings, Record("branch", str(name)), self._run.executor_is_done)
        variables = {key: variable.for_branch(key) for key, variable in self._variables.items()}
        state = self._child(executor, own, variables)
        self._below.append(state)
        self._forked += 1
        self._run.add(executor)
        return state

    def _child(self, executor: Executor, own: Sampling, variables: dict[str, Variable]) -> State:
        return State(
            self._run,
            executor,
            stronger=own.over(self._stronger),
            weaker=self._weaker,
            variables=variables,
            open_role=self._open_role,
            path=(*self._path, self._forked),
        )

    @contextlib.contextmanager
    def copy(self) -> Iterator[State]:
        """`with s.copy() as scratch:` - one branch, to try something that this state does not see."""
        with self.fork(1) as branches:
            yield branches[0]

    @overload
    def call(self, program: AsyncProgram[Any, R], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]: ...

    @overload
    def call(self, program: SyncProgram[Any, R], *args: Any, **kwargs: Any) -> R: ...

    def call(self, program: Program[Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Run another program's body on this state, and return what it returns. For an `async def` one: await it."""
        return program.run_on(self, args, kwargs)

    @contextlib.contextmanager
    def with_defaults(self, sampling: Sampling) -> Iterator[None]:
        """Inside, a called program's own defaults hold, where forks and `run` say nothing."""
        self._run.require_sampling(sampling)
        before = self._weaker
        self._set_weaker(sampling.over(before))
        try:
            yield
        finally:
            self._set_weaker(before)

    def _set_weaker(self, weaker: Sampling) -> None:
        self._weaker, self._sampling = weaker, self._stronger.over(weaker)

    def cancel(self) -> None:
        """Stop this state and its branches now. Reads raise Cancelled; what the backend held for them is freed."""
        for state in self._family():
            state._executor.fail(Cancelled(f"{state._executor.label} was cancelled."))
