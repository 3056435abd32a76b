"""The engine: one thread that owns tree, pool, scheduler and model. Everybody else talks to it through a queue.

Knows nothing of HTTP, of programs or of chat: token ids in, events out. A step that crashes fails the requests in that
step with the original error and the engine goes on.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from lmprog_runtime.admission import Group, check_request, needs_compiling
from lmprog_runtime.cache import CacheManager, Lease
from lmprog_runtime.constraint.base import Grammar
from lmprog_runtime.errors import EngineFailed, RequestAborted, RuntimeFault
from lmprog_runtime.generation import Generation
from lmprog_runtime.model.executor import Executor
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.request import (
    Constraint,
    GenerateRequest,
    ScoreRequest,
    Sink,
)
from lmprog_runtime.results import Job, Jobs, Results, hidden_ids, report
from lmprog_runtime.scheduler import ScheduledStep, Scheduler, Sequence
from lmprog_runtime.scoring import ScoreJob
from lmprog_runtime.timing import Durations
from lmprog_runtime.verification import CacheVerifier

log = logging.getLogger("lmprog.engine")
T = TypeVar("T")

_CANCELLED = "The request was cancelled."


class ConstraintCompiler(Protocol):
    def __call__(self, constraint: Constraint | None, prefix_text: bytes) -> Grammar: ...


class Engine:
    """Runs requests until `shutdown`. Every public method may be called from any thread."""

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        cache: CacheManager,
        compiler: ConstraintCompiler,
        *,
        namespace: str,
        context_length: int,
        jump_forward: bool = True,
        speculation: bool = True,
        check_every_step: bool = False,
        verify_share: float = 0.0,
    ) -> None:
        self.tokenizer, self.executor, self.cache, self.scheduler = tokenizer, executor, cache, scheduler
        self.context_length = context_length
        self._compiler, self._namespace = compiler, namespace
        self._jump_forward, self._speculation = jump_forward, speculation
        self._check_every_step = check_every_step
        self.verifier = CacheVerifier(verify_share, executor.dtype, self.submit) if verify_share else None
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._compile_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="lmprog-compile")
        self._jobs = Jobs()
        self._preparing: set[int] = set()  # submitted, not yet admitted: their constraints may still be compiling
        self._cancelled: set[int] = set()  # of those, the ones aborted meanwhile
        self._ids = itertools.count(1)
        self._is_stopping = False
        self._is_closed = False  # the thread has ended and takes no more commands
        self._gate = threading.RLock()  # between a command's arrival and the end of the thread
        self.steps = 0
        self.failed_steps = 0
        self.cache_violations = 0  # steps after which the cache's slots did not add up
        self.refused_constraints = 0
        self.compile_times = Durations()  # of constraints, those found in the cache included
        self.failure: BaseException | None = None  # what ended the thread, when nobody asked it to end
        self.step_started: float | None = None  # monotonic seconds, while the model computes
        hidden = hidden_ids(tokenizer, executor.vocab_size, executor.device)
        self.results = Results(scheduler, self._jobs, self._end, self.verifier, hidden)
        self.mask_times = self.results.mask_times
        self._thread = threading.Thread(target=self._run, name="lmprog-engine", daemon=True)
        self._thread.start()

    # -- called from other threads ----------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> int:
        """Start a request. Returns its id at once; every error, user mistakes included, goes to `sink.fail`."""
        return self.submit_group([request], [sink])[0]

    def submit_group(self, requests: list[GenerateRequest | ScoreRequest], sinks: list[Sink]) -> list[int]:
        """Start requests that share a prefix; the scheduler admits them together when they fit."""
        ids = [next(self._ids) for _ in requests]
        self._preparing.update(ids)
        prepared: Group[Job] = Group(ids)
        for job_id, request, sink in zip(ids, requests, sinks, strict=True):
            self._prepare(job_id, request, sink, prepared)
        return ids

    def abort(self, job_id: int) -> None:
        """End a request soon; its sink gets RequestAborted unless it had ended. Unknown and ended ids are fine."""
        self._put(lambda: self._abort(job_id, RequestAborted(_CANCELLED)))

    def lease(self) -> Lease:
        """A hold on the cache that follows a program's stream from request to request."""
        return self.cache.open_lease()

    def fork_lease(self, parent: Lease, count: int) -> list[Lease]:
        """Leases for streams that start as the parent's, which mostly waits for them: its own hold is no lock now."""
        children = [self.cache.open_lease() for _ in range(count)]
        self._put(lambda: self._share(parent, children))
        return children

    def _share(self, parent: Lease, children: list[Lease]) -> None:
        for child in children:
            self.cache.share_lease(parent, child)
        self.cache.will_return(parent)

    def release(self, lease: Lease, *, dead_from: int | None = None) -> None:
        """The stream has ended: let go of its prefix. Its tokens from position `dead_from` on are evicted first."""
        self._put(lambda: self.cache.close_lease(lease, dead_from))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the engine thread between two steps (statistics, flush, explain)."""
        future: Future[T] = Future()
        self._put(lambda: _resolve(future, function))
        return future

    def _put(self, command: Callable[[], None]) -> None:
        """Hand a command to the engine thread; after its end nobody else is there, and it runs here."""
        with self._gate:
            if self._is_closed:
                command()
            else:
                self._commands.put(command)

    def namespace(self, salt: str | None) -> tuple[object, ...]:
        """Key of the prefixes that requests with this salt share: (model revision, adapter, salt)."""
        return (self._namespace, None, salt)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_stopping

    def shutdown(self) -> None:
        """Fail what is running, stop the thread. Idempotent."""
        if not self._is_stopping:
            self._is_stopping = True
            self._commands.put(lambda: None)
        self._thread.join()
        self._compile_threads.shutdown(wait=True)

    # -- preparation: checks on the caller's thread, compilation on its own ----------------------------------------

    def _prepare(self, job_id: int, request: GenerateRequest | ScoreRequest, sink: Sink, group: Group[Job]) -> None:
        if self._is_stopping:
            report(sink.fail, self._end_error("The engine is shut down; make a new runtime."))
            self._arrive(group)
            return
        try:
            check_request(request, self.executor.vocab_size)
        except RuntimeFault as error:
            report(sink.fail, error)
            self._arrive(group)
            return
        if isinstance(request, GenerateRequest) and needs_compiling(request):
            self._compile_threads.submit(self._compile_and_arrive, job_id, request, sink, group, time.monotonic())
        else:
            self._arrive(group, (job_id, self._job(request, sink, None)))

    def _compile_and_arrive(
        self, job_id: int, request: GenerateRequest, sink: Sink, group: Group[Job], submitted: float
    ) -> None:
        try:
            needs_grammar = request.constraint is not None or request.prefix_text
            grammar = self._compile(request) if needs_grammar else None
            job = self._job(request, sink, grammar)
        except BaseException as error:  # whatever the compiler raises belongs to this request alone
            self._put(self._count_refusal)
            report(sink.fail, error)
            self._arrive(group)
            return
        job.timing.submitted = submitted
        self._arrive(group, (job_id, job))

    def _count_refusal(self) -> None:
        self.refused_constraints += 1

    def _compile(self, request: GenerateRequest) -> Grammar:
        started = time.monotonic()
        try:
            return self._compiler(request.constraint, request.prefix_text)
        finally:
            self.compile_times.add(time.monotonic() - started)

    def _job(self, request: GenerateRequest | ScoreRequest, sink: Sink, grammar: Grammar | None) -> Job:
        if isinstance(request, GenerateRequest):
            keep = self.verifier is not None and self.verifier.wants(request)
            return Generation(
                request,
                sink,
                self.tokenizer,
                grammar,
                jump_forward=self._jump_forward,
                speculation=self._speculation,
                keep_logprobs=keep,
            )
        return ScoreJob.of(request, sink)

    def _arrive(self, group: Group[Job], ready: tuple[int, Job] | None = None) -> None:
        members = group.arrive(ready)
        if members is not None:
            self._put(lambda: self._admit(group.ids, members))

    # -- engine thread: the loop ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._do_commands(block=not self.scheduler.has_work())
                if not self._is_stopping:
                    self._step()
        except BaseException as error:  # scheduler and cache can no longer be trusted: nothing more is computed
            log.critical("the engine has failed and takes no more requests", exc_info=error)
            self.failure, self._is_stopping = error, True
        with self._gate:
            self._is_closed = True
        self._do_commands(block=False)
        self._fail_all(self._end_error("The engine was shut down while this request was running."))

    def _end_error(self, message: str) -> RuntimeFault:
        """What requests get that the thread's end leaves unanswered."""
        if self.failure is None:
            return RequestAborted(message)
        reason = f"The engine has failed ({type(self.failure).__name__}: {self.failure}); start a new runtime."
        fault = EngineFailed(reason)
        fault.__cause__ = self.failure
        return fault

    def _do_commands(self, *, block: bool) -> None:
        if block:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _step(self) -> None:
        step = self.scheduler.schedule()
        if step is None:
            return
        self._note_starts(step)
        self.step_started = time.monotonic()
        try:
            logits = self.executor.step(step.batch)
        except Exception as error:
            self.scheduler.fail(step)
            self._fail_step(step, error)
        else:
            self.scheduler.complete(step)
            self.steps += 1
            self._distribute(step, logits)
        self.step_started = None
        self._check_cache()

    def _check_cache(self) -> None:
        if self._check_every_step:
            self.cache.check()
        elif not self.cache.adds_up():
            if not self.cache_violations:
                log.error("the cache's slots do not add up, which is a bug in lmprog; start a new runtime")
            self.cache_violations += 1

    def _note_starts(self, step: ScheduledStep) -> None:
        now = time.monotonic()
        for sequence, start, _ in step.chunks:
            if start < sequence.prompt_length:
                timing = self._jobs.owner[sequence][1].timing
                if timing.started is None:
                    timing.started = now

    def _distribute(self, step: ScheduledStep, logits: Any) -> None:
        try:
            self.results.distribute(step, logits)
        except Exception as error:
            self._fail_step(step, error)

    def _fail_step(self, step: ScheduledStep, error: Exception) -> None:
        """The step's requests get the error; the others never notice."""
        log.exception("a step failed")
        self.failed_steps += 1
        fault = EngineFailed(
            f"The model failed on this request's step ({type(error).__name__}: {error}); try it again."
        )
        fault.__cause__ = error
        for sequence, _, _ in step.chunks:
            if sequence in self._jobs.owner:
                self._end(self._jobs.owner[sequence][0], fault)

    # -- engine thread: requests in and out -------------------------------------------------------------------------

    def _admit(self, ids: list[int], members: list[tuple[int, Job]]) -> None:
        cancelled = self._cancelled.intersection(ids)
        self._cancelled -= cancelled
        self._preparing.difference_update(ids)
        groups: list[Sequence] = []
        for job_id, job in members:
            if self._is_stopping:
                report(job.sink.fail, self._end_error("The engine was shut down before this request began."))
                continue
            if job_id in cancelled:
                report(job.sink.fail, RequestAborted(_CANCELLED))
                continue
            sequences = self._sequences_of(job)
            try:
                for sequence in sequences:
                    self.scheduler.check_fits(sequence)
            except RuntimeFault as error:
                report(job.sink.fail, error)
                continue
            self._jobs.add(job_id, job, sequences)
            groups += sequences
        if groups:
            self.scheduler.add(groups)

    def _sequences_of(self, job: Job) -> list[Sequence]:
        if isinstance(job, ScoreJob):
            job.sequences = [self._sequence(job.request, max_new_tokens=0, tree=trie.tree) for trie in job.tries]
            return job.sequences
        request = job.request
        start = request.params.prompt_logprobs_start
        left = self.context_length - len(request.token_ids)
        job.sequence = self._sequence(request, max_new_tokens=request.params.max_tokens or max(1, left))
        if start is not None:
            job.sequence.logits_from = max(0, start - 1)
        return [job.sequence]

    def _sequence(self, request: GenerateRequest | ScoreRequest, **more: Any) -> Sequence:
        return Sequence(
            token_ids=list(request.token_ids),
            prompt_length=len(request.token_ids),
            namespace=self.namespace(request.salt),
            priority=request.priority,
            use_cache=request.use_cache,
            lease=request.lease,
            **more,
        )

    def _abort(self, job_id: int, error: BaseException) -> None:
        if job_id in self._jobs.by_id:
            self._end(job_id, error)
        elif job_id in self._preparing:
            self._cancelled.add(job_id)

    def _end(self, job_id: int, error: BaseException) -> None:
        """Fail a job and give back what it still holds."""
        job, sequences = self._jobs.remove(job_id)
        for sequence in sequences:
            self.scheduler.abort(sequence)
        report(job.sink.fail, error)

    def _fail_all(self, error: BaseException) -> None:
        for job_id, job in list(self._jobs.by_id.items()):
            if self.failure is None:
                self._end(job_id, error)
            else:  # giving slots back to a broken cache could fail as well, and nobody needs them any more
                report(job.sink.fail, error)


def _resolve(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():  # whoever asked has stopped waiting
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
