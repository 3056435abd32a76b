"""Runs a task: items in the order of best reuse, results that do not depend on it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lmprog.backends.base import Backend, Usage
from lmprog.errors import EngineFailed, IncompleteOutput, InvalidArgument, PromptTooLong, RequestRefused
from lmprog.evaluation.data import Item, load_items
from lmprog.evaluation.metrics import Estimate, estimate
from lmprog.evaluation.records import Record, RecordFile
from lmprog.evaluation.task import STYLES, Asking, Outcome, Task, choose_shots, shots_for
from lmprog.program import Run, function
from lmprog.state import State

TooLong = Literal["error", "drop-shots"]
OF_THE_ITEM = (RequestRefused, EngineFailed, IncompleteOutput)
"""Errors that one item has; others, such as a mistake in the task, would come with each and end the evaluation."""


@dataclass(frozen=True)
class Evaluation:
    """What came out. `records` are in the order of the data."""

    task: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, Estimate]
    records: Sequence[Record]
    failed: Mapping[int, str]  # index of an item to its error
    seconds: float
    resumed: int  # items that the records file had already

    @property
    def fewer_shots(self) -> int:
        """Items whose prompt was too long with all examples, and has fewer."""
        return sum(record["shots"] < self.settings["shots"] for record in self.records)

    @property
    def usage(self) -> Usage:
        total = Usage()
        for record in self.records:
            total = total.plus(Usage(**record["usage"]))
        return total

    def as_data(self) -> dict[str, Any]:
        """All but the records, as JSON data."""
        return {
            "task": self.task,
            **self.settings,
            "metrics": {name: asdict(value) for name, value in self.metrics.items()},
            "items": len(self.records),
            "failed": {str(index): text for index, text in self.failed.items()},
            "fewer_shots": self.fewer_shots,
            "resumed": self.resumed,
            "seconds": self.seconds,
            "usage": self.usage._asdict(),
        }


def evaluate(
    task: Task,
    *,
    backend: Backend,
    shots: int = 0,
    limit: int | None = None,
    asking: Asking | None = None,
    shot_seed: int = 0,
    too_long: TooLong = "error",
    records: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    num_threads: int = 64,
    progress_bar: bool = False,
) -> Evaluation:
    """Ask about each of the first `limit` items, with `shots` examples, and score the answers.

    The examples are the same for all items, drawn by content and `shot_seed`: neither the order of the data nor that
    of the runs changes any number. too_long: what becomes of a prompt that the model cannot take; it is an error of
    its item, or loses whole examples until it fits (counted in `fewer_shots`). records: a JSON Lines file with a line
    per finished item; the same call goes on where one ended, even by kill -9. settings: more to note with the result.
    Raises InvalidArgument for what can never work, and the first error that is not of one item alone.
    """
    asking = asking or Asking()
    work = _Work(task, backend, asking, shots, num_threads, too_long, progress_bar)
    noted = {**(settings or {}), **_settings(task, asking, shots, shot_seed)}
    items = load_items(task.data, limit)
    chosen = choose_shots(_pool(task, shots), shots, shot_seed) if shots else []
    start = time.perf_counter()
    with _record_file(records, noted) as file:
        done = {item.index: file.done[item.key] for item in items if file is not None and item.key in file.done}
        open_items = [item for item in items if item.index not in done]
        resumed = len(done)
        for record in work.records(open_items, chosen):
            done[record["index"]] = record
            if file is not None:
                file.write(record)
    ordered = [{**done[index], "index": index} for index in sorted(done)]
    seconds = time.perf_counter() - start
    return Evaluation(task.name, noted, _estimates(ordered), ordered, work.failed, seconds, resumed)


def _settings(task: Task, asking: Asking, shots: int, shot_seed: int) -> dict[str, Any]:
    if asking.style not in STYLES:
        raise InvalidArgument(f"There is no style {asking.style!r}; it is one of {', '.join(STYLES)}.")
    return {"task": task.name, "shots": shots, "shot_seed": shot_seed, **asking._asdict()}


def _pool(task: Task, shots: int) -> list[Item]:
    """All that may be an example. From the data itself, one more is needed: an item is not its own example."""
    own = task.shots_data is None
    pool = load_items(task.data if task.shots_data is None else task.shots_data)
    if len(pool) < shots + own:
        where = "the data, the item itself aside" if own else "shots_data"
        raise InvalidArgument(f"{shots} shots need as many examples; {where}, has {len(pool) - own}.")
    return pool


def _estimates(records: Sequence[Record]) -> dict[str, Estimate]:
    values: dict[str, list[float]] = {}
    for record in records:
        for name, value in record["metrics"].items():
            values.setdefault(name, []).append(value)
    return {name: estimate(found) for name, found in values.items()}


@contextlib.contextmanager
def _record_file(path: str | Path | None, settings: Mapping[str, Any]) -> Iterator[RecordFile | None]:
    if path is None:
        yield None
        return
    with contextlib.closing(RecordFile(Path(path), settings)) as file:
        yield file


@function
def ask_item(s: State, task: Task, item: Item, shots: Sequence[Mapping[str, Any]], asking: Asking) -> Outcome:
    task.ask(s, item.data, shots, asking)
    return task.score(s, item.data)


@dataclass
class _Work:
    """Turns items into records."""

    task: Task
    backend: Backend
    asking: Asking
    shots: int
    num_threads: int
    too_long: TooLong
    progress_bar: bool
    failed: dict[int, str] = field(default_factory=dict)

    def records(self, items: Sequence[Item], chosen: Sequence[Item]) -> Iterator[Record]:
        """Records as they finish. Prompts that are too long run again with one example less, if that is wanted."""
        ordered = sorted(items, key=lambda item: self.task.order(item.data))
        count = self.shots
        with _bar(self.task.name, len(ordered), self.progress_bar) as bar:
            while ordered:
                too_long: list[Item] = []
                for item, run in self._runs(ordered, chosen, count):
                    if count and self._is_to_run_again(run):
                        too_long.append(item)
                        continue
                    if (record := self._record(item, run, count)) is not None:
                        yield record
                    bar.update()
                ordered, count = too_long, count - 1

    def _runs(self, items: Sequence[Item], chosen: Sequence[Item], count: int) -> Iterable[tuple[Item, Run[Outcome]]]:
        calls = ((self.task, item, shots_for(item, chosen, count), self.asking) for item in items)
        threads = min(self.num_threads, len(items))
        for index, run in ask_item.as_completed(calls, num_threads=threads, backend=self.backend):
            yield items[index], run

    def _is_to_run_again(self, run: Run[Outcome]) -> bool:
        return self.too_long == "drop-shots" and isinstance(run.error(), PromptTooLong)

    def _record(self, item: Item, run: Run[Outcome], count: int) -> Record | None:
        """None for an item that failed, which is noted."""
        error = run.error()
        if error is None:
            return _record_of(item, run, count)
        if not isinstance(error, OF_THE_ITEM):
            raise error
        self.failed[item.index] = f"{type(error).__name__}: {error}"
        return None


def _record_of(item: Item, run: Run[Outcome], shots: int) -> Record:
    outcome = run.ret_value
    return {
        "key": item.key,
        "index": item.index,
        "shots": shots,
        "metrics": dict(outcome.metrics),
        **outcome.details,
        "usage": run.usage._asdict(),
    }


def _bar(name: str, total: int, is_shown: bool) -> Any:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]
        monitor_interval = 0  # no thread of its own

    return Bar(total=total, desc=name, unit=" items", disable=not is_shown or not total)
