"""Programs: what `@function` makes of a Python function, and the runs that they start."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from lmprog import arguments, context
from lmprog.backends.base import AS_USUAL, Backend
from lmprog.context import RunContext
from lmprog.errors import BlockingRead, InvalidArgument, RunTimeout
from lmprog.executor import Executor, Settings
from lmprog.language import select
from lmprog.nodes import Node
from lmprog.options import RUN_OPTIONS, RunOptions, is_option
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.settings import default_backend
from lmprog.state import State
from lmprog.variables import Variable
from lmprog.waiting import is_in_event_loop

if TYPE_CHECKING:
    from lmprog.graph import Graph

P = ParamSpec("P")
R = TypeVar("R")
Q = TypeVar("Q", bound="Program[Any, Any]")

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


class Run(State, Generic[R]):
    """The state of a whole run."""

    _returned: Any = None
    _task: Any = None  # keeps the task of a streaming `arun` alive

    @property
    def ret_value(self) -> R:
        """What the body returned. Waits for the body; raises the state's failure."""
        self._executor.wait(lambda: not self._may_still_grow())
        value: R = self._returned
        return value

    @classmethod
    def failed(cls, program: str, error: BaseException) -> Run[Any]:
        """A run that could not even start: every read raises `error`."""
        executor = Executor(f"program {program!r}", Settings(), Record("program", program))
        executor.fail(error)
        return cls.finished(executor, {}, None)

    @classmethod
    def finished(cls, executor: Executor, variables: dict[str, Variable], ret_value: Any) -> Run[Any]:
        """A run that is over, without a backend behind it."""
        executor.end()
        run = cls(None, executor, stronger=Sampling(), weaker=Sampling(), variables=variables)
        run._returned = ret_value
        return run


class Program(Generic[P, R]):
    """A decorated function. Call it, or `run` it, without the state: `judge.run(essay=text, backend=...)`.

    Keywords that are parameters of the function go to it. Others are options of the run: backend, stream, timeout
    (seconds for the whole run), retries (how often a model call is made again when the backend cannot be reached),
    num_api_spec_tokens (one request for several gens, see `lmprog.backends.speculation`), cache (False: reuse no KV),
    cache_salt (share KV with runs of the same salt only), priority (higher goes first), and any sampling parameter,
    stronger than what `@function` says and weaker than what a gen says. Runs that the program starts inherit cache,
    cache_salt and priority.
    """

    def __init__(
        self, function: Callable[..., Any], sampling: Sampling, options: RunOptions, bound: Mapping[str, Any]
    ) -> None:
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__doc__, self.__module__, self.__wrapped__ = function.__doc__, function.__module__, function
        self.function = function
        self.sampling, self.options, self.bound = sampling, options, dict(bound)
        self.name: str = function.__name__
        self.__signature__ = _signature_without_state(function)

    def __repr__(self) -> str:
        return f"<lmprog program {self.name}{self.__signature__}>"

    # -- variants -------------------------------------------------------------------------------------------------

    def with_options(self: Q, **options: Any) -> Q:
        """The same program with other defaults for the options of a run; calls stay fully typed."""
        self._refuse_unknown(options)
        changed: Q = self._variant(options=self.options.updated(options))
        return changed

    def bind(self, **values: Any) -> Program[..., R]:
        """The same program with some of its parameters given."""
        for name in values:
            if name not in self.__signature__.parameters:
                raise arguments.unknown_parameter(self.name, name, self.__signature__.parameters)
        changed: Program[..., R] = self._variant(bound={**self.bound, **values})
        return changed

    def __get__(self, instance: object | None, owner: type | None = None) -> Program[P, R]:
        """A program defined in a class is a method of its instances."""
        if instance is None:
            return self
        return type(self)(self.function.__get__(instance, owner), self.sampling, self.options, self.bound)

    def _variant(self, **changes: Any) -> Any:
        changed = copy.copy(self)
        for name, value in changes.items():
            setattr(changed, name, value)
        return changed

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, *args: Any, **kwargs: Any) -> Run[R]:
        """Run the body, and return its state. Model calls may still be going on; reads wait for them.

        With stream=True the body runs in a thread of its own, and the state comes at once. An exception of the body
        leaves from here; a failure of the model is raised by every read of the state.
        """
        run, args, call_kwargs = self.begin(args, kwargs)
        if not run.streams:
            self.execute(run, args, call_kwargs)
            return run
        body = functools.partial(copy_context().run, self._execute_quietly, run, args, call_kwargs)
        threading.Thread(target=body, name=f"lmprog-{self.name}", daemon=True).start()
        return run

    async def arun(self, *args: Any, **kwargs: Any) -> Run[R]:
        """Run the program to its end, without blocking the event loop. Cancelling the task cancels the run.

        With stream=True the state comes at once, and the program runs as a task; a body that is not async runs in a
        thread of the loop's pool. Failures of the model are raised by reads, like after `run`.
        """
        import asyncio

        run, args, call_kwargs = self.begin(args, kwargs)
        if run.streams:
            run._task = asyncio.ensure_future(self._aexecute_quietly(run, args, call_kwargs))
            return run
        await self.aexecute(run, args, call_kwargs)
        await settle_or_stop(run)
        return run

    def run_on(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The body on a state of another program. See `State.call`."""
        call_kwargs = {**self.bound, **kwargs}
        self._check_call(args, call_kwargs)
        return self._execute_on(state, args, call_kwargs)

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Run[R], tuple[Any, ...], dict[str, Any]]:
        """A run whose body has not been called yet, and what to call it with."""
        options, call_kwargs = self._split(args, kwargs)
        return self._start(options), args, call_kwargs

    @abstractmethod
    def execute(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None: ...

    @abstractmethod
    async def aexecute(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _execute_on(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...

    def _execute_quietly(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            self.execute(run, args, kwargs)
        except BaseException as error:  # nobody waits for this thread: reads of the state raise it
            run._run.stop(error)

    async def _aexecute_quietly(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            await self.aexecute(run, args, kwargs)
        except Exception as error:
            run._run.stop(error)

    # -- many runs ------------------------------------------------------------------------------------------------

    def run_batch(self, items: Iterable[Any], **options: Any) -> Any:
        """Run the program on each item. See `lmprog.batching.run_batch`."""
        from lmprog.batching import run_batch

        return run_batch(self, items, **options)

    def as_completed(self, items: Iterable[Any], **options: Any) -> Iterator[tuple[int, Run[R]]]:
        """(index, run) of each item as it finishes. See `lmprog.batching.as_completed`."""
        from lmprog.batching import as_completed

        return as_completed(self, items, **options)

    def amap(self, items: Iterable[Any], **options: Any) -> AsyncIterator[Run[R]]:
        """`async for run in program.amap(items)`, in the order of the items. See `lmprog.batching.amap`."""
        from lmprog.batching import amap

        return amap(self, items, **options)

    # -- without running ------------------------------------------------------------------------------------------

    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph of the program, made by running its body once on placeholders. See `lmprog.tracing`.

        Arguments given are constants of the graph; the others become its parameters.
        """
        from lmprog.tracing import trace

        return trace(self, args, kwargs)

    def cache(self, backend: Backend | None = None) -> str:
        """Compute the constant beginning of the program on the backend, ahead of its use. Returns that text.

        The body runs once on placeholders, up to the first thing that depends on an argument or on the model.
        """
        from lmprog.tracing import constant_prefix

        return warm(constant_prefix(self), backend or self.options.backend or default_backend())

    # -- arguments and options ------------------------------------------------------------------------------------

    def _split(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
        """The options of the run, and the keywords for the body."""
        parameters = self.__signature__.parameters
        options = {k: v for k, v in kwargs.items() if k not in parameters and is_option(k)}
        call_kwargs = {**self.bound, **{k: v for k, v in kwargs.items() if k not in options}}
        self._check_call(args, call_kwargs)
        return self.options.updated(options) if options else self.options, call_kwargs

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            parameters = self.__signature__.parameters
            takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            for name in kwargs:
                if name not in parameters and not takes_any:
                    known = [*parameters, *RUN_OPTIONS, *arguments.CHECKS]
                    raise arguments.unknown_parameter(self.name, name, known) from None
            raise TypeError(f"{self.name}(): {error}.") from None

    def _refuse_unknown(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if not is_option(name):
                raise arguments.unknown_parameter("with_options", name, [*RUN_OPTIONS, *arguments.CHECKS])

    def _start(self, options: RunOptions) -> Run[R]:
        caller = context.current.get()
        backend = options.on(options.backend or (caller.backend if caller else default_backend()))
        routing = options.routing(caller.settings.routing if caller else AS_USUAL)
        settings = Settings(options.stream, options.retries, isinstance(self, AsyncProgram), routing)
        run_context = RunContext(backend, settings)
        run_context.require(routing.given())
        run_context.require_sampling(options.sampling)
        run_context.require_sampling(self.sampling)
        record = Record("program", self.name)
        executor = Executor(f"program {self.name!r}", settings, record, run_context.executor_is_done)
        run: Run[R] = Run(
            run_context, executor, stronger=options.sampling, weaker=self.sampling.over(backend.defaults), variables={}
        )
        run_context.root = run
        run_context.add(executor)
        executor.start(backend.open_stream())
        if caller is not None:
            _adopt(caller, run)
        if options.timeout is not None:
            error = RunTimeout(f"Program {self.name!r} took longer than its {options.timeout:g} seconds.")
            run_context.limit(options.timeout, error)
        return run


class SyncProgram(Program[P, R]):
    """A program that is a plain function."""

    if TYPE_CHECKING:

        def bind(self, **values: Any) -> SyncProgram[..., R]: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """`run`, on the backend of the program that calls, or the default one. The caller's usage includes it."""
        return self.run(*args, **kwargs)

    def execute(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        token = context.current.set(run._run)
        try:
            run._returned = self.function(run, *args, **kwargs)
        except BaseException as error:
            run._run.stop(error)
            raise
        finally:
            context.current.reset(token)
        run._run.end()

    async def aexecute(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        import asyncio

        body = functools.partial(copy_context().run, self.execute, run, args, kwargs)
        try:
            await asyncio.get_running_loop().run_in_executor(None, body)
        except asyncio.CancelledError:
            run.cancel()  # the body's next read raises
            raise

    def _execute_on(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        with state.with_defaults(self.sampling):
            result: R = self.function(state, *args, **kwargs)
            return result


class AsyncProgram(Program[P, R]):
    """A program that is an `async def`. It waits with `await s`, `await s.aget("name")`, `await branches`."""

    if TYPE_CHECKING:

        def bind(self, **values: Any) -> AsyncProgram[..., R]: ...

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        return await self.arun(*args, **kwargs)

    def execute(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        import asyncio

        if is_in_event_loop():
            error = BlockingRead(
                f"{self.name}.run() cannot wait inside a running event loop;",
                hint=f"write: await {self.name}.arun(...)",
            )
            run._run.stop(error)
            raise error
        asyncio.run(self.aexecute(run, args, kwargs))

    async def aexecute(self, run: Run[R], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        token = context.current.set(run._run)
        try:
            run._returned = await self.function(run, *args, **kwargs)
        except BaseException as error:
            run._run.stop(error)
            raise
        finally:
            context.current.reset(token)
        run._run.end()

    async def _execute_on(self, state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        with state.with_defaults(self.sampling):
            result: R = await self.function(state, *args, **kwargs)
            return result


def warm(nodes: Sequence[Node], backend: Backend) -> str:
    """Have the backend compute a prefix of text and turns. Returns its text.

    A score reads all that is before it, turns as the model's own template writes them. A backend that cannot score
    is told the text, and so is one that chooses by generating, as chat APIs do.
    """
    can_score = backend.supports("score") and backend.supports("choice_logprobs")

    def prefix(s: State) -> str:
        for node in nodes:
            s += node
        text = s.text()
        if can_score:
            s += select(choices=["."], logprobs=True)
        return text

    run = SyncProgram[[], str](prefix, Sampling(), RunOptions(), {}).run(backend=backend)
    run.sync()
    if not can_score:
        backend.warm_prefix(run.ret_value)
    return run.ret_value


class ProgramMethod(Protocol[P, R]):
    """How type checkers see a program that is defined in a class."""

    def __get__(self, instance: object, owner: type | None = None) -> SyncProgram[P, R]: ...


class Decorator(Protocol):
    """What `@function(...)` with options returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the first that fits is meant
        self, function: Callable[Concatenate[State, P], Coroutine[Any, Any, R]], /
    ) -> AsyncProgram[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[State, P], R], /) -> SyncProgram[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Any, State, P], R], /) -> ProgramMethod[P, R]: ...


@overload
def function(  # type: ignore[overload-overlap]  # the first that fits is meant
    function: Callable[Concatenate[State, P], Coroutine[Any, Any, R]], /
) -> AsyncProgram[P, R]: ...


@overload
def function(function: Callable[Concatenate[State, P], R], /) -> SyncProgram[P, R]: ...


@overload
def function(function: Callable[Concatenate[Any, State, P], R], /) -> ProgramMethod[P, R]: ...


@overload
def function(**options: Any) -> Decorator: ...


def function(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a program of a function whose first parameter is the state.

        @function                                   @function(temperature=0, backend=runtime)
        def judge(s, essay): ...                    async def judge(s, essay): ...

    Options are any sampling parameter, as the default of the program's gens, and backend, timeout, retries,
    num_api_spec_tokens, cache, cache_salt and priority.
    Works for methods (`def step(self, s, x)`), keyword-only parameters and `async def`.
    """
    for name in options:
        if not is_option(name) or name == "stream":
            known = [each for each in (*RUN_OPTIONS, *arguments.CHECKS) if each != "stream"]
            raise arguments.unknown_parameter("function", name, known)
    sampling = arguments.checked_sampling("function", {k: v for k, v in options.items() if k in arguments.CHECKS})
    run_options = RunOptions().updated({k: v for k, v in options.items() if k in RUN_OPTIONS})

    def decorate(function: Callable[..., Any]) -> Program[Any, Any]:
        if not callable(function):
            raise InvalidArgument(f"@function takes options by keyword, not {function!r}.")
        kind = AsyncProgram if inspect.iscoroutinefunction(function) else SyncProgram
        return kind(function, sampling, run_options, {})

    return decorate if function is None else decorate(function)


def _signature_without_state(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (inspect.Parameter.POSITIONAL_ONLY, _POSITIONAL):
        raise InvalidArgument(f"A program takes its state as the first parameter: def {function.__name__}(s, ...).")
    return signature.replace(parameters=parameters[1:])


def _adopt(caller: RunContext, run: Run[Any]) -> None:
    """A run that a program starts belongs to it: its usage counts there, and it stops when that stops."""
    caller.root._below.append(run)
    caller.root._executor.steps_taken.append(run._executor.record)
    caller.add_call(run._run)


async def settle_or_stop(run: Run[Any]) -> None:
    import asyncio

    try:
        await run.settled()
    except asyncio.CancelledError:
        run.cancel()
        raise
