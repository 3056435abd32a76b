"""Groups of branches: what `s.fork(...)` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmprog.errors import InvalidArgument
from lmprog.executor import Executor
from lmprog.location import program_line
from lmprog.nodes import Node
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.steps import JoinStep
from lmprog.variables import Computed
from lmprog.waiting import settle, settle_async

if TYPE_CHECKING:
    from lmprog.state import State

BranchName: TypeAlias = "str | int"
JoinMode = Literal["gather_variable", "append_text", "concate_and_append"]  # the last is SGLang's name of append_text
OnError = Literal["raise", "keep", "drop"]


class Branches:
    """The branches of one fork, in order.

        with s.fork(["clarity", "depth"]) as branches:
            for aspect, b in branches.items():
                b += user(f"Judge the {aspect}.") + assistant(gen("note"))
        notes = [b["note"] for b in branches]

    `branches += x` appends to all: text or a node the same to each, a list one item to each, a function what it returns
    for 0, 1, ... When the `with` block is left, or the program ends, nothing more can be appended to the branches, and
    their memory on the backend is freed as soon as they have run; an error in the block cancels them.
    """

    def __init__(self, parent: State, names: Sequence[BranchName], states: Sequence[State], shared: Sampling) -> None:
        self._parent = parent
        self._states = dict(zip(names, states, strict=True))
        self._shared = shared
        self._forked_at = parent._appended

    # -- a sequence and a mapping ---------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<branches {', '.join(map(repr, self._states))}>"

    @property
    def names(self) -> list[BranchName]:
        return list(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[State]:
        """The branches, not their names, in order."""
        return iter(list(self._states.values()))

    def items(self) -> list[tuple[BranchName, State]]:
        return list(self._states.items())

    def __getitem__(self, key: BranchName) -> State:
        """A branch by name, or by position when no branch has that number as its name."""
        if key in self._states:
            return self._states[key]
        if isinstance(key, int) and -len(self) <= key < len(self):
            return list(self._states.values())[key]
        if isinstance(key, int):
            raise IndexError(f"There is no branch {key}; there are {len(self)}.")
        raise KeyError(f"There is no branch {key!r}; there are {', '.join(map(repr, self._states))}.")

    def __setitem__(self, key: BranchName, state: State) -> None:
        """Only for `branches[0] += ...`, which Python ends by putting the branch back."""
        if self[key] is not state:
            raise InvalidArgument("A branch cannot be replaced; append to it with +=.")

    # -- appending ------------------------------------------------------------------------------------------------

    def __iadd__(self, other: Any) -> Branches:
        for state, part in zip(self, self._parts(other), strict=True):
            state += part  # appends in place
        return self

    def _parts(self, other: Any) -> list[Any]:
        if isinstance(other, Node | str):
            return [other] * len(self)
        if isinstance(other, list | tuple):
            if len(other) != len(self):
                raise InvalidArgument(f"A list of {len(other)} cannot be shared out over {len(self)} branches.")
            return list(other)
        if callable(other):
            return [other(index) for index in range(len(self))]
        raise InvalidArgument(f"Branches take text, nodes, lists and functions, not {type(other).__name__}.")

    def grow(self, branches: int | Sequence[BranchName] = 1) -> list[State]:
        """Add branches that start where the others did. Only while the parent has not gone on. Returns the new ones."""
        if self._parent._appended != self._forked_at:
            raise InvalidArgument("The parent has gone on since the fork, so the group cannot grow; fork again.")
        names = branch_names(branches, taken=self._states)
        more = self._parent.fork(names, sampling=[self._shared.given()] * len(names))
        self._states.update(more._states)
        self._forked_at = self._parent._appended
        return list(more)

    # -- ending ---------------------------------------------------------------------------------------------------

    def join(self, mode: JoinMode = "gather_variable", on_error: OnError = "raise") -> None:
        """End the branches and bring them back into the parent. Does not wait; the parent's next steps do.

        gather_variable: for each name that a branch has set, `s[name]` of the parent becomes the list of the branches'
            values, one for each branch in order: None where a branch has no such variable, and what the branch
            inherited where it did not set it itself. A variable of that name that the parent had is replaced.
        append_text: what each branch wrote since the fork is appended to the parent, in order.
        on_error: what a failed branch is. raise: the parent fails with the branch's error, at once. keep: the error
            stands in the branch's place in the lists. drop: the branch is left out of all lists.
        """
        checked_mode(mode)
        checked_on_error(on_error)
        appends = mode != "gather_variable"
        if appends:
            self._check_turns()
        self.end()
        record = Record("join", mode, location=program_line())
        step = JoinStep(record, self._executors(), fails_early=on_error == "raise", appends=appends)
        if not appends:
            self._gather(record, _Gathered(list(self), on_error))
        self._parent._submit(step)

    def _gather(self, record: Record, gathered: _Gathered) -> None:
        for name in gathered.names:
            column = partial(gathered.column, name)
            self._parent._declare(name, Computed(lambda: record.status == "done", column))

    def _check_turns(self) -> None:
        for name, state in self.items():
            if state._open_role != self._parent._open_role:
                raise InvalidArgument(
                    f"Branch {name!r} is in the {state._open_role or 'no'} turn, its parent in the "
                    f"{self._parent._open_role or 'no'} turn; close or open it before their texts are joined."
                )

    def end(self) -> None:
        """Nothing will be appended to the branches any more."""
        for executor in self._executors():
            executor.end()

    def cancel(self) -> None:
        """Stop all branches now."""
        for state in self:
            state.cancel()

    def __enter__(self) -> Branches:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.end()
        else:
            self.cancel()

    # -- waiting --------------------------------------------------------------------------------------------------

    def first(self, k: int = 1) -> list[State]:
        """Wait for the first k branches that finish well, cancel the others, and return the k in order of finishing.

        Raises the first failure when fewer than k are left that could finish well.
        """
        race = _Race(self._executors(), checked_count(k, len(self)))
        settle(race.executors, race.is_over)
        return self._decide(race)

    async def afirst(self, k: int = 1) -> list[State]:
        """`first` for `async def` programs."""
        race = _Race(self._executors(), checked_count(k, len(self)))
        await settle_async(race.executors, race.is_over)
        return self._decide(race)

    def _decide(self, race: _Race) -> list[State]:
        winners = race.winners()
        states = {state._executor: state for state in self}
        for executor in race.executors:
            if executor not in winners:
                states[executor].cancel()
        return [states[executor] for executor in winners]

    def best(self, key: str | Callable[[State], Any]) -> State:
        """The branch with the highest value of a variable, or of `key(branch)`. Waits for all; failed ones are out.

        Raises the first failure when all have failed. Ties go to the earlier branch.
        """
        measure = (lambda state: state[key]) if isinstance(key, str) else key
        return max(self._successful(), key=measure)

    def vote(self, name: str) -> Any:
        """The most frequent value of a variable; failed branches are out. Ties go to the earlier value."""
        return Counter(state[name] for state in self._successful()).most_common(1)[0][0]

    def _successful(self) -> list[State]:
        executors = self._executors()
        settle(executors, lambda: all(map(_is_over, executors)))
        good = [state for state in self if state._executor.failure is None]
        if not good:
            executors[0].raise_failure()
        return good

    def __await__(self) -> Generator[Any, None, Branches]:
        """`await branches`: wait until all that was appended to them has run, or failed."""
        return self._awaited().__await__()

    async def _awaited(self) -> Branches:
        executors = self._executors()
        await settle_async(executors, lambda: all(map(_is_over, executors)))
        return self

    def _executors(self) -> list[Executor]:
        return [state._executor for state in self]


class _Race:
    def __init__(self, executors: list[Executor], wanted: int) -> None:
        self.executors, self._wanted = executors, wanted

    def is_over(self) -> bool:
        return len(self._finished()) >= self._wanted or len(self._failed()) > len(self.executors) - self._wanted

    def winners(self) -> list[Executor]:
        finished = self._finished()
        if len(finished) < self._wanted:
            self._failed()[0].raise_failure()
        return sorted(finished, key=_finish_time)[: self._wanted]

    def _finished(self) -> list[Executor]:
        return [each for each in self.executors if each.failure is None and each.is_idle]

    def _failed(self) -> list[Executor]:
        return [each for each in self.executors if each.failure is not None]


def _is_over(executor: Executor) -> bool:
    return executor.failure is not None or executor.is_idle


def _finish_time(executor: Executor) -> float:
    return executor.steps_taken[-1].ended if executor.steps_taken else 0.0


class _Gathered:
    """The values of joined branches: read once, when the first of them is asked for, so that all lists agree."""

    def __init__(self, states: Sequence[State], on_error: OnError) -> None:
        self._states, self._on_error = states, on_error
        self.names = list(dict.fromkeys(name for s in states for name in s._variables if name in s._changed))
        self._rows: list[dict[str, Any] | BaseException] | None = None

    def column(self, name: str) -> list[Any]:
        if self._rows is None:
            rows = [self._row(state) for state in self._states]
            self._rows = [r for r in rows if self._on_error != "drop" or not isinstance(r, BaseException)]
        return [row if isinstance(row, BaseException) else row[name] for row in self._rows]

    def _row(self, state: State) -> dict[str, Any] | BaseException:
        if state._executor.failure is not None:
            return state._executor.failure
        try:
            return {name: _value(state, name) for name in self.names}
        except Exception as error:
            if self._on_error == "raise":
                raise
            return error


def _value(state: State, name: str) -> Any:
    variable = state._variables.get(name)
    return None if variable is None else variable.get()


def branch_names(branches: int | Sequence[BranchName], taken: Collection[BranchName] = ()) -> list[BranchName]:
    """Names for a fork: 0, 1, ... for a count, or those given, which must differ from each other and those taken."""
    if isinstance(branches, int) and not isinstance(branches, bool):
        if branches < 0:
            raise InvalidArgument(f"A fork needs a number of branches of at least 0, not {branches}.")
        return list(range(len(taken), len(taken) + branches))
    if isinstance(branches, str | bool) or not isinstance(branches, Sequence):
        raise InvalidArgument(f"fork takes a number or a list of names, not {branches!r}.")
    names = list(branches)
    for name in names:
        if not isinstance(name, str | int):
            raise InvalidArgument(f"A branch is named by a text or a number, not {name!r}.")
        if names.count(name) > 1 or name in taken:
            raise InvalidArgument(f"Two branches cannot both be named {name!r}.")
    return names


def checked_mode(mode: Any) -> None:
    if mode not in ("gather_variable", "append_text", "concate_and_append"):
        raise InvalidArgument(f"join has the modes gather_variable and append_text, not {mode!r}.")


def checked_on_error(on_error: Any) -> None:
    if on_error not in ("raise", "keep", "drop"):
        raise InvalidArgument(f"on_error is raise, keep or drop, not {on_error!r}.")


def checked_count(k: Any, available: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= available:
        raise InvalidArgument(f"first takes a number from 1 to {available}, the number of branches, not {k!r}.")
    return k
