"""`gen(n=...)`: several samples of one output, as branches of the stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lmprog.backends.base import GenerateCall
from lmprog.context import branch_seed
from lmprog.errors import Cancelled
from lmprog.executor import Executor
from lmprog.record import Record
from lmprog.steps import GenStep, WaitStep
from lmprog.variables import Written


class SamplesStep(WaitStep):
    """Takes `call.sampling.n` samples at once. The text goes on with the first, on the very stream that made it."""

    def __init__(self, record: Record, call: GenerateCall, convert: Callable[[str], Any] | None) -> None:
        super().__init__(record, (), fails_early=True)
        self._call = call
        count = call.sampling.n or 1
        self._samples = [Record("gen", record.name, location=record.location) for _ in range(count)]
        self._variables = [Written(record.name, sample, convert) for sample in self._samples]
        record.children = [Record("branch", str(i)) for i in range(count)]
        if call.sampling.temperature == 0:
            _warn_of_equal_samples(count, record.location)

    def values(self) -> list[Any]:
        return [variable.get() for variable in self._variables]

    def start(self, executor: Executor) -> bool:
        self._wait_for([self._executor_of(i, executor) for i in range(len(self._samples))])
        streams = executor.stream.fork(len(self._branches))
        for index, (branch, stream) in enumerate(zip(self._branches, streams, strict=True)):
            branch.steps_taken.append(self._samples[index])
            branch.append(GenStep(self._samples[index], replace(self._call, sampling=self._sampling_of(index))))
            branch.start(stream, executor.transcript)
        return super().start(executor)

    def _executor_of(self, index: int, parent: Executor) -> Executor:
        return Executor(f"{parent.label}, sample {index}", parent.settings, self.record.children[index])

    def _sampling_of(self, index: int) -> Any:
        one = replace(self._call.sampling, n=None)
        return one if one.seed is None else replace(one, seed=branch_seed(one.seed, (index,)))

    def is_over(self, branch: Executor) -> bool:
        return branch.is_idle or branch.failure is not None

    def succeed(self, executor: Executor) -> None:
        first, *others = self._branches
        record, samples = self.record, self._samples
        record.text = samples[0].text
        record.meta = {**samples[0].meta, "samples": tuple(sample.meta for sample in samples)}
        executor.transcript.append(record)
        executor.take_stream_of(first)
        for branch in others:
            branch.end()

    def give_up(self) -> None:
        for branch in self._branches:
            branch.fail(Cancelled("Another sample of the same gen has failed or was cancelled."))


def _warn_of_equal_samples(count: int, location: str) -> None:
    file, _, line = location.rpartition(":")
    message = f"{count} samples at temperature 0 are {count} times the same text; give a temperature."
    warnings.warn_explicit(message, UserWarning, file, int(line))
