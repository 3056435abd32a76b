"""What a state does, one class per kind of step. A step owns its record; the executor decides when it starts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial

from lmprog import transcript
from lmprog.backends.base import (
    GenerateCall,
    GenerateResult,
    Once,
    PendingCall,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
)
from lmprog.choices import pick
from lmprog.errors import BackendUnavailable, Cancelled
from lmprog.executor import Executor, Step
from lmprog.nodes import Select
from lmprog.record import Record
from lmprog.timer import timer

FIRST_BACKOFF, LONGEST_BACKOFF = 0.25, 8.0  # seconds


class TextStep(Step):
    def start(self, executor: Executor) -> bool:
        executor.stream.append_text(self.record.text)
        executor.transcript.append(self.record)
        return True


class SpecialStep(Step):
    def start(self, executor: Executor) -> bool:
        executor.stream.append_special(self.record.text)
        executor.transcript.append(self.record)
        return True


class RoleBeginStep(Step):
    def start(self, executor: Executor) -> bool:
        executor.stream.begin_role(self.record.name)
        executor.transcript.append(self.record)
        return True


class RoleEndStep(Step):
    def start(self, executor: Executor) -> bool:
        executor.stream.end_role()
        executor.transcript.append(self.record)
        return True


class ModelStep(Step):
    """A step that calls the model. Calls that could not reach it are made again after a growing pause."""

    _executor: Executor
    _attempts = 0

    def start(self, executor: Executor) -> bool:
        self._executor = executor
        executor.transcript.append(self.record)
        self._call()
        return False

    def call(self, stream: Stream, sink: Sink) -> PendingCall:
        raise NotImplementedError

    def accept(self, result: object) -> None:
        raise NotImplementedError

    def _call(self) -> None:
        sink, rank = Sink(self._delta, self._done, self._failed), 2 * self._attempts
        self._executor.now_calling(self.call(self._executor.stream, sink), rank)

    def _delta(self, text: str) -> None:
        self.record.text += text
        self._executor.wake()

    def _done(self, result: object) -> None:
        try:
            self.accept(result)
        except BaseException as error:  # whatever it is, the program must hear of it, and not the backend's thread
            self._executor.fail(error, self)
        else:
            self._executor.finish(self)
        self._executor.resume()

    def _failed(self, error: BaseException) -> None:
        executor = self._executor
        if self._may_try_again(error):
            self._attempts += 1
            backoff = Backoff(pause_before(self._attempts), self._call, self._failed)
            executor.now_calling(backoff, rank=2 * self._attempts - 1)
        else:
            executor.fail(error, self)
            executor.resume()

    def _may_try_again(self, error: BaseException) -> bool:
        executor = self._executor
        return (
            isinstance(error, BackendUnavailable)
            and executor.failure is None
            and self._attempts < executor.settings.retries
            and not self.record.text  # what was streamed cannot be taken back
        )


def pause_before(attempt: int) -> float:
    """Seconds before the next try: doubling, with jitter so that many programs do not come back at once."""
    return min(FIRST_BACKOFF * 2.0 ** (attempt - 1), LONGEST_BACKOFF) * random.uniform(0.5, 1.0)


class Backoff(PendingCall):
    """The wait before a call is made again; cancelled like a call."""

    def __init__(self, seconds: float, call_again: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        self._end = Once()
        self._call_again, self._fail = call_again, fail
        self._alarm = timer.call_later(seconds, self._try_again)

    def cancel(self) -> None:
        if self._end.is_first():
            self._alarm.cancel()
            self._fail(Cancelled("The call was cancelled while it waited to be made again."))

    def _try_again(self) -> None:
        if self._end.is_first():
            try:
                self._call_again()
            except Exception as error:  # this is the timer's thread: the error belongs to the program
                self._fail(error)


class GenStep(ModelStep):
    def __init__(self, record: Record, call: GenerateCall) -> None:
        super().__init__(record)
        self._generate = call

    def call(self, stream: Stream, sink: Sink) -> PendingCall:
        return stream.generate(self._generate, sink)

    def accept(self, result: object) -> None:
        assert isinstance(result, GenerateResult)
        record = self.record
        record.text, record.usage, record.timing = result.text, result.usage, result.timing
        record.meta = {
            "finish_reason": result.finish_reason,
            "matched_stop": result.matched_stop,
            "is_complete": result.is_complete,
            "token_ids": result.token_ids,
            "logprobs": result.logprobs,
            **result.meta,
        }


class SelectStep(ModelStep):
    def __init__(self, record: Record, node: Select, seed: int | None) -> None:
        super().__init__(record)
        self._node, self._seed = node, seed

    def start(self, executor: Executor) -> bool:
        node, record = self._node, self.record
        if len(node.choices) > 1 or node.wants_logprobs:
            return super().start(executor)
        record.text, record.meta = node.choices[0], {"choices": node.choices, "method": node.method.name}
        executor.stream.append_text(record.text)
        executor.transcript.append(record)
        return True

    def call(self, stream: Stream, sink: Sink) -> PendingCall:
        routing = self._executor.settings.routing
        return stream.score(ScoreCall(self._node.choices, self._node.method.needs_unconditional, routing), sink)

    def accept(self, result: object) -> None:
        assert isinstance(result, ScoreResult)
        node, record = self._node, self.record
        scores = node.method(result.choices)
        chosen = result.choices[pick(scores, node.temperature, self._seed)]
        self._executor.stream.append_choice(chosen)
        record.text, record.usage, record.timing = chosen.text, result.usage, result.timing
        record.meta = {
            "choices": node.choices,
            "method": node.method.name,
            "scores": tuple(scores),
            "logprobs": tuple(choice.logprobs for choice in result.choices),
            "token_ids": tuple(choice.token_ids for choice in result.choices),
            "unconditional_logprobs": tuple(choice.unconditional for choice in result.choices),
        }


class ForkStep(Step):
    def __init__(self, record: Record, branches: Sequence[Executor]) -> None:
        super().__init__(record)
        self._branches = branches

    def start(self, executor: Executor) -> bool:
        streams = executor.stream.fork(len(self._branches)) if self._branches else []
        for branch, stream in zip(self._branches, streams, strict=True):
            branch.start(stream, executor.transcript)
        return True

    def abandon(self, error: BaseException) -> None:
        for branch in self._branches:
            branch.fail(error)


class ScopeBegin(Step):
    """Remembers where a `var_scope` begins."""

    position = 0

    def start(self, executor: Executor) -> bool:
        self.position = len(executor.transcript)
        return True


class ScopeEnd(Step):
    def __init__(self, record: Record, begin: ScopeBegin) -> None:
        super().__init__(record)
        self._begin = begin

    def start(self, executor: Executor) -> bool:
        self.record.text = transcript.as_text(executor.transcript[self._begin.position :])
        return True


class WaitStep(Step, PendingCall):
    """Waits for other executors. `fails_early`: the first failure among them fails this state too, at once."""

    def __init__(self, record: Record, branches: Sequence[Executor], *, fails_early: bool) -> None:
        super().__init__(record)
        self._fails_early = fails_early
        self._lock = threading.Lock()
        self._once = Once()
        self._wait_for(branches)

    def _wait_for(self, branches: Sequence[Executor]) -> None:
        self._branches, self._waiting = branches, len(branches)

    def start(self, executor: Executor) -> bool:
        self._executor = executor
        executor.now_calling(self)
        if not self._branches:
            self._end(None)
        for branch in self._branches:
            self._watch(branch)
        return False

    def cancel(self) -> None:
        self._end(Cancelled("The state was cancelled while it waited for its branches."))

    def is_over(self, branch: Executor) -> bool:
        return branch.is_done

    def succeed(self, executor: Executor) -> None:
        """All are over: do what this step is for."""

    def give_up(self) -> None:
        """The state has failed, or one of the others did."""

    def _watch(self, branch: Executor) -> None:
        """Come back at each change of the branch until it is over."""
        if branch.subscribe(lambda: self.is_over(branch), partial(self._watch, branch)):
            return
        with self._lock:
            self._waiting -= 1
            is_last = self._waiting == 0
        if branch.failure is not None and self._fails_early:
            self._end(branch.failure)
        elif is_last:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if not self._once.is_first():
            return
        try:
            if error is not None:
                raise error
            self.succeed(self._executor)
        except BaseException as failure:  # this may be a backend's thread: the error belongs to the program
            self._executor.fail(failure, self)
            self.give_up()
        else:
            self._executor.finish(self)
        self._executor.resume()


class JoinStep(WaitStep):
    """Waits for branches and, if it `appends`, writes what they wrote."""

    def __init__(self, record: Record, branches: Sequence[Executor], *, fails_early: bool, appends: bool) -> None:
        super().__init__(record, branches, fails_early=fails_early)
        self._appends = appends

    def succeed(self, executor: Executor) -> None:
        if not self._appends:
            return
        written = [r for b in self._branches if b.failure is None for r in b.transcript[b.inherited :]]
        for record in written:
            transcript.replay(record, executor.stream)
        executor.transcript.extend(written)
        self.record.text = transcript.as_text(written)
