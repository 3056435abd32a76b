"""`gen(n=...)` and `gen(best_of=...)`: several samples of one output, as branches of the stream."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lmprog.backends.base import GenerateCall
from lmprog.context import branch_seed
from lmprog.errors import Cancelled, InvalidArgument
from lmprog.executor import Executor
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.steps import GenStep, WaitStep
from lmprog.variables import Written


class SamplesStep(WaitStep):
    """Takes `call.sampling.n` samples at once, or keeps that many of `best_of`. The text goes on with the first of
    those kept, on the very stream that made it. InvalidArgument when best_of is below n."""

    def __init__(self, record: Record, call: GenerateCall, convert: Callable[[str], Any] | None) -> None:
        super().__init__(record, (), fails_early=True)
        self._call, self._kept = call, call.sampling.n or 1
        count = call.sampling.best_of or self._kept
        if count < self._kept:
            raise InvalidArgument(f"best_of ({count}) is below n ({self._kept}).")
        self._order = list(range(count))  # of the samples, the best first when some are left out
        self._samples = [Record("gen", record.name, location=record.location) for _ in range(count)]
        self._variables = [Written(record.name, sample, convert) for sample in self._samples]
        record.children = [Record("branch", str(i)) for i in range(count)]
        if call.sampling.temperature == 0:
            _warn_of_equal_samples(count, record.location)

    def value(self) -> Any:
        """The samples kept; alone when only best_of was given."""
        kept = [self._variables[index].get() for index in self._order[: self._kept]]
        return kept if self._call.sampling.n is not None else kept[0]

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

    def _sampling_of(self, index: int) -> Sampling:
        one = replace(self._call.sampling, n=None, best_of=None)
        if len(self._order) > self._kept:
            one = replace(one, logprobs=True)
        return one if one.seed is None else replace(one, seed=branch_seed(one.seed, (index,)))

    def is_over(self, branch: Executor) -> bool:
        return branch.is_idle or branch.failure is not None

    def succeed(self, executor: Executor) -> None:
        record, samples = self.record, self._samples
        if len(samples) > self._kept:
            self._order.sort(key=lambda index: -_mean_logprob(samples[index].meta))
        first = self._order[0]
        record.text = samples[first].text
        record.meta = {**samples[first].meta, "samples": tuple(samples[index].meta for index in self._order)}
        record.children = [record.children[index] for index in self._order]
        executor.transcript.append(record)
        executor.take_stream_of(self._branches[first])
        for index in self._order[1:]:
            self._branches[index].end()

    def give_up(self) -> None:
        for branch in self._branches:
            branch.fail(Cancelled("Another sample of the same gen has failed or was cancelled."))


def _mean_logprob(meta: Mapping[str, Any]) -> float:
    """Per token, natural log. An empty output is the best there can be: it had nothing to be unsure of."""
    logprobs = [each.logprob for each in meta["logprobs"] if each.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else 0.0


def _warn_of_equal_samples(count: int, location: str) -> None:
    file, _, line = location.rpartition(":")
    message = f"{count} samples at temperature 0 are {count} times the same text; give a temperature."
    warnings.warn_explicit(message, UserWarning, file, int(line))
