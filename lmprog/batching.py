"""Many runs of one program. Each item has a result of its own: an error of one is never the loss of another.

An item is a dict of keyword arguments or a tuple of positional ones. Its result is a run; one that failed, in the model
or in the program's body, raises its error when it is read, and `run.error()` gives it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sized
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lmprog import arguments
from lmprog.errors import InvalidArgument
from lmprog.program import Program, Run, settle_or_stop

if TYPE_CHECKING:
    from lmprog.resume import ResumeLog

R = TypeVar("R")
DEFAULT_THREADS = 64  # they mostly wait for the backend, which batches what they ask for
Results = Generator[tuple[int, Run[R]], None, None]


def run_batch(
    program: Program[Any, R],
    items: Iterable[Any],
    *,
    num_threads: int | str = "auto",
    progress_bar: bool = False,
    generator_style: bool = False,
    raise_on_error: bool = False,
    resume: str | Path | None = None,
    key: Callable[[Any], str] | None = None,
    **options: Any,
) -> list[Run[R]] | Iterator[Run[R]]:
    """Run `program` on each of `items`, any iterable; results in its order.

    num_threads: how many runs are under way at a time ("auto": 64); each has a thread, their branches have none.
    progress_bar: done, failed and rate on stderr. generator_style: an iterator that yields results in order while later
    items run (at most 2 * num_threads ahead), instead of a list. Closing it cancels what is under way.
    raise_on_error: raise the first error, in the order of items, and cancel the rest.
    resume: path of a JSON Lines file that gets one line for each item that finished well. Items that it holds already
    are not run again; their runs are restored from it (typed values as plain JSON). After a crash, at any time, the
    same call goes on: only items that were under way, or had failed, run again. `key` names an item (default: a hash
    of its arguments); items of the same key are numbered. Only one process at a time may use the file.
    options: as for `run`; they hold for all items. If the iterable itself fails, its error is raised after the items
    that it gave have finished.
    """
    threads = _threads(num_threads, items)
    log = _open_log(resume, key)
    ahead = 2 * threads if generator_style else None
    results = _in_order(_Workers(program, items, threads, options, log, ahead), _bar(program, items, progress_bar))
    if raise_on_error:
        results = _raising(results)
    return results if generator_style else list(results)


def as_completed(
    program: Program[Any, R], items: Iterable[Any], *, num_threads: int | str = "auto", **options: Any
) -> Results[R]:
    """(index, run) of each item, in the order in which they finish, `num_threads` of them under way at a time."""
    threads = _threads(num_threads, items)
    yield from _Workers(program, items, threads, options, log=None, ahead=2 * threads).results()


async def amap(
    program: Program[Any, R], items: Iterable[Any], *, concurrency: int = DEFAULT_THREADS, **options: Any
) -> AsyncIterator[Run[R]]:
    """The run of each item, in order, with at most `concurrency` under way. Closing the iterator cancels them."""
    import asyncio

    arguments.integer(1)("concurrency", concurrency)
    waiting: deque[asyncio.Task[Run[R]]] = deque()
    numbered = enumerate(items)
    try:
        while True:
            for index, item in itertools.islice(numbered, concurrency - len(waiting)):
                waiting.append(asyncio.ensure_future(_arun_item(program, index, item, options)))
            if not waiting:
                return
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()


# -- one item -----------------------------------------------------------------------------------------------------


def _item_arguments(index: int, item: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, tuple | list):
        return tuple(item), {}
    raise InvalidArgument(
        f"Item {index} is {item!r:.80}; an item is a dict of keyword arguments or a tuple of positional ones."
    )


class _Item(NamedTuple):
    run: Run[Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def _prepare(program: Program[Any, R], index: int, item: Any, options: Mapping[str, Any]) -> _Item | Run[R]:
    """The run and the arguments of its body, or a failed run if it cannot begin."""
    try:
        args, kwargs = _item_arguments(index, item)
        return _Item(*program.begin(args, {**options, **kwargs}))
    except Exception as error:
        return Run.failed(program.name, error)


def _run_item(program: Program[Any, R], index: int, item: Any, options: Mapping[str, Any], workers: _Workers) -> Run[R]:
    """The run of one item, finished. What went wrong in it is in it."""
    prepared = _prepare(program, index, item, options)
    if isinstance(prepared, Run):
        return prepared
    with workers.watching(prepared.run):
        with contextlib.suppress(BaseException):
            program.execute(*prepared)
        prepared.run.error()  # waits
    return prepared.run


async def _arun_item(program: Program[Any, R], index: int, item: Any, options: Mapping[str, Any]) -> Run[R]:
    prepared = _prepare(program, index, item, options)
    if isinstance(prepared, Run):
        return prepared
    with contextlib.suppress(Exception):
        await program.aexecute(*prepared)
    await settle_or_stop(prepared.run)
    return prepared.run


# -- the workers --------------------------------------------------------------------------------------------------


class _Source:
    """Hands out the items one by one, to any thread, until there are no more or it is stopped."""

    def __init__(self, items: Iterable[Any], ahead: int | None) -> None:
        self._items = enumerate(items)
        self._lock = threading.Lock()
        self._slots = None if ahead is None else threading.Semaphore(ahead)
        self._is_stopped = False
        self.error: BaseException | None = None  # of the iterable itself

    def take(self) -> tuple[int, Any] | None:
        if self._slots is not None:
            self._slots.acquire()
        with self._lock:
            taken = None if self._is_stopped else self._next()
        if taken is None:
            self.stop()
        return taken

    def _next(self) -> tuple[int, Any] | None:
        try:
            return next(self._items, None)
        except BaseException as error:
            self.error = error
            return None

    def give_back(self) -> None:
        """A result was used: one more item may begin."""
        if self._slots is not None:
            self._slots.release()

    def stop(self) -> None:
        self._is_stopped = True
        self.give_back()  # each thread that this wakes stops too, and wakes the next


class _Workers:
    def __init__(
        self,
        program: Program[Any, Any],
        items: Iterable[Any],
        threads: int,
        options: Mapping[str, Any],
        log: ResumeLog | None,
        ahead: int | None,
    ) -> None:
        self._program, self._options, self._log = program, options, log
        self._source = _Source(items, ahead)
        self._count = threads
        self._done: SimpleQueue[tuple[int, Run[Any]] | None] = SimpleQueue()  # None: a worker has ended
        self._under_way: set[Run[Any]] = set()
        self._is_cancelled = False

    def results(self) -> Results[Any]:
        """(index, run) as they finish. Closing the generator cancels the rest and waits for the workers."""
        threads = [threading.Thread(target=copy_context().run, args=(self._work,)) for _ in range(self._count)]
        for thread in threads:
            thread.start()
        try:
            yield from self._until_all_have_ended()
        finally:
            self._cancel()
            for thread in threads:
                thread.join()
            if self._log is not None:
                self._log.close()
        if self._source.error is not None:
            raise self._source.error

    def _until_all_have_ended(self) -> Results[Any]:
        running = self._count
        while running:
            if (result := self._done.get()) is None:
                running -= 1
            else:
                yield result
                self._source.give_back()

    def _work(self) -> None:
        try:
            while (taken := self._source.take()) is not None:
                index, item = taken
                self._done.put((index, self._result(index, item)))
        finally:
            self._done.put(None)

    def _result(self, index: int, item: Any) -> Run[Any]:
        def run_it() -> Run[Any]:
            return _run_item(self._program, index, item, self._options, self)

        return run_it() if self._log is None else self._log.once(self._program.name, index, item, run_it)

    @contextlib.contextmanager
    def watching(self, run: Run[Any]) -> Iterator[None]:
        """So that the run can be cancelled from outside while it is under way."""
        self._under_way.add(run)
        if self._is_cancelled:
            run.cancel()
        yield
        self._under_way.discard(run)

    def _cancel(self) -> None:
        self._is_cancelled = True
        self._source.stop()
        for run in list(self._under_way):
            run.cancel()


# -- order, errors, progress --------------------------------------------------------------------------------------


def _in_order(workers: _Workers, bar: Any) -> Generator[Run[Any], None, None]:
    early: dict[int, Run[Any]] = {}
    following = 0
    with contextlib.closing(workers.results()) as results, bar:
        for index, run in results:
            _show(bar, run)
            early[index] = run
            while following in early:
                yield early.pop(following)
                following += 1


def _raising(runs: Generator[Run[R], None, None]) -> Generator[Run[R], None, None]:
    with contextlib.closing(runs):
        for run in runs:
            if (error := run.error()) is not None:
                raise error
            yield run


def _bar(program: Program[Any, Any], items: Iterable[Any], is_shown: bool) -> Any:
    if not is_shown:
        return contextlib.nullcontext()
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # no thread of its own

        failed = 0

    return Bar(total=len(items) if isinstance(items, Sized) else None, desc=program.name, unit="run")


def _show(bar: Any, run: Run[Any]) -> None:
    if isinstance(bar, contextlib.nullcontext):
        return
    if run.error() is not None:
        bar.failed += 1
        bar.set_postfix(failed=bar.failed)
    bar.update()


def _threads(num_threads: Any, items: Iterable[Any]) -> int:
    count: int = DEFAULT_THREADS if num_threads == "auto" else arguments.integer(1)("num_threads", num_threads)
    return min(count, max(1, len(items))) if isinstance(items, Sized) else count


def _open_log(resume: str | Path | None, key: Callable[[Any], str] | None) -> ResumeLog | None:
    if resume is None:
        if key is not None:
            raise InvalidArgument("key names items for resume; give resume=path too.")
        return None
    from lmprog.resume import ResumeLog

    return ResumeLog(Path(resume), key)
