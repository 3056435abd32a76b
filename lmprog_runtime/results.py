"""From the logits of a step to what its requests get: sampled tokens, verified guesses, scores, prompt logprobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.generation import Accepted, Generation
from lmprog_runtime.model.sampler import DeadEnd, Sampled, sample, token_logprobs
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.scheduler import ScheduledStep, Scheduler, Sequence, StepOutput
from lmprog_runtime.scoring import NodeScore, ScoreJob
from lmprog_runtime.timing import Durations
from lmprog_runtime.verification import CacheVerifier

log = logging.getLogger("lmprog.engine")

Job = Generation | ScoreJob


class Jobs:
    """The live requests, by id and by sequence."""

    def __init__(self) -> None:
        self.by_id: dict[int, Job] = {}
        self.owner: dict[Sequence, tuple[int, Job]] = {}  # its id, and itself

    def add(self, job_id: int, job: Job, sequences: list[Sequence]) -> None:
        self.by_id[job_id] = job
        self.owner.update(dict.fromkeys(sequences, (job_id, job)))

    def remove(self, job_id: int) -> tuple[Job, list[Sequence]]:
        """The job and all its sequences."""
        job = self.by_id.pop(job_id)
        sequences = job.sequences if isinstance(job, ScoreJob) else [job.sequence]
        for sequence in sequences:
            self.owner.pop(sequence, None)
        return job, sequences


class _Turn(NamedTuple):
    """A generation whose next token comes from logits row `row`; rows up to `last` belong to its guesses."""

    job: Generation
    row: int
    last: int


class Results:
    """Hands the logits of steps out. On the engine thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        jobs: Jobs,
        end: Callable[[int, BaseException], None],
        verifier: CacheVerifier | None,
        hidden_ids: torch.Tensor | None,
    ) -> None:
        """`end` fails a request. `hidden_ids`: columns of the logits that no token of the tokenizer stands for."""
        self._scheduler, self._jobs, self._end, self._verifier = scheduler, jobs, end, verifier
        self._hidden_ids = hidden_ids
        self.generated_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0  # of those drafted
        self.mask_times = Durations()  # of all masks of a step

    def distribute(self, step: ScheduledStep, logits: torch.Tensor) -> None:
        if self._hidden_ids is not None:
            with torch.inference_mode():  # as executors do, whose tensor this is
                logits.index_fill_(1, self._hidden_ids, -torch.inf)
        turns: list[_Turn] = []
        for output in step.outputs:
            sequence, first_position, first_row, row_count = output
            _, job = self._jobs.owner[sequence]
            if isinstance(job, ScoreJob):
                self._score_part(job, output, logits)
                continue
            if first_position < sequence.prompt_length - 1:
                _note_prompt_logprobs(job, output, logits)
            row = job.known_length - 1 - first_position
            if 0 <= row < row_count:
                turns.append(_Turn(job, first_row + row, first_row + row_count - 1))
        num_rows = len(step.batch.logit_rows)
        while turns:
            turns = self._sample(turns, logits, num_rows)

    # -- generations ------------------------------------------------------------------------------------------------

    def _sample(self, turns: list[_Turn], logits: torch.Tensor, num_rows: int) -> list[_Turn]:
        """One token for each; the turns that go on, because the row of their next token is there as well."""
        turns, masks = self._masked(turns)
        rows = _rows(logits, num_rows, [turn.row for turn in turns])
        sampled = sample(rows, [turn.job.sampler for turn in turns], masks)
        following: list[_Turn] = []
        for turn, token in zip(turns, sampled, strict=True):
            accepted = self._accept(turn.job, token)
            if accepted is not None and (after := self._go_on(turn, accepted)) is not None:
                following.append(after)
        return following

    def _masked(self, turns: list[_Turn]) -> tuple[list[_Turn], list[NDArray[np.uint32] | None]]:
        """The masks, and the turns that have one: a constraint that reaches a limit fails its own request only."""
        started = time.perf_counter()
        ready: list[_Turn] = []
        masks: list[NDArray[np.uint32] | None] = []
        for turn in turns:
            try:
                masks.append(turn.job.mask())
            except Exception as error:
                self._fail(turn.job, error)
            else:
                ready.append(turn)
        if any(mask is not None for mask in masks):
            self.mask_times.add(time.perf_counter() - started)
        return ready, masks

    def _accept(self, job: Generation, token: Sampled | DeadEnd) -> Accepted | None:
        """None when the request has failed: a constraint or stop expression at its limit is its own request's."""
        if isinstance(token, DeadEnd):
            self._fail(job, RequestRefused(token.reason))
            return None
        try:
            accepted = job.accept(token)
        except Exception as error:
            self._fail(job, error)
            return None
        self.generated_tokens += len(accepted.token_ids)
        return accepted

    def _fail(self, job: Generation, error: BaseException) -> None:
        job_id, _ = self._jobs.owner[job.sequence]
        self._end(job_id, error)

    def _go_on(self, turn: _Turn, accepted: Accepted) -> _Turn | None:
        """Keep the guesses that came true. If all that was accepted was guessed, the next row is at hand."""
        (job, row, last), (token_ids, is_finished) = turn, accepted
        sequence = job.sequence
        if job.drafter.drafts:
            kept = job.known_length
            same = job.drafter.confirm(token_ids)
            self.accepted_tokens += same
            if same == len(token_ids) and not is_finished and row + same <= last:
                return _Turn(job, row + same, last)
            job.drafter.drop()
            self._scheduler.rewind(sequence, kept + same)
            token_ids = token_ids[same:]
        self._scheduler.append(sequence, token_ids)
        if is_finished:
            self._finish(job, sequence)
        elif job.speculates:
            self._draft(job, sequence)
        return None

    def _draft(self, job: Generation, sequence: Sequence) -> None:
        """Guess at what comes, if that pays and there is room; the last token is never computed."""
        known = len(sequence.token_ids)
        drafts = job.draft(
            len(self._scheduler.running), lambda: min(sequence.token_limit - known - 1, self._scheduler.spare_rows())
        )
        if drafts:
            self.drafted_tokens += len(drafts)
            self._scheduler.append(sequence, drafts, logits_from=known - 1)

    def _finish(self, job: Generation, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        self._jobs.remove(self._jobs.owner[sequence][0])
        completion = job.complete()
        report(job.sink.done, completion)
        if self._verifier is not None and job.kept_logprobs is not None:
            self._verifier.check(job.request, completion, job.kept_logprobs)

    # -- scores -------------------------------------------------------------------------------------------------------

    def _score_part(self, job: ScoreJob, output: StepOutput, logits: torch.Tensor) -> None:
        """The logits of an entry give the logprobs of what follows it in the trie."""
        sequence = output.sequence
        index = job.sequences.index(sequence)
        trie = job.tries[index]
        to_row = output.row_start - output.first_position + sequence.prompt_length
        end = output.row_start + output.row_count
        nodes = [node for node, parent in enumerate(trie.parents) if output.row_start <= parent + to_row < end]
        if nodes:
            rows = logits[[trie.parents[node] + to_row for node in nodes]]
            best = int(job.request.wants_greedy)
            for node, entry in zip(nodes, token_logprobs(rows, [trie.tokens[i] for i in nodes], best), strict=True):
                assert entry.logprob is not None
                is_best = bool(entry.top) and entry.top[0][1] == entry.logprob
                job.found[index][node] = NodeScore(entry.logprob, is_best)
        if output.first_position + output.row_count == sequence.total:
            self._finish_part(job, sequence)

    def _finish_part(self, job: ScoreJob, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        job_id, _ = self._jobs.owner.pop(sequence)
        job.unfinished -= 1
        if not job.unfinished:
            del self._jobs.by_id[job_id]
            report(job.sink.done, job.result())


def hidden_ids(tokenizer: Tokenizer, columns: int, device: str) -> torch.Tensor | None:
    """Columns of the logits that stand for no token: rows that a model has beyond its tokenizer's. None: there are no
    such. They are never sampled, and have no part in log-probabilities."""
    known = tokenizer.token_bytes
    unknown = [i for i in range(columns) if i not in tokenizer.special_ids and (i >= len(known) or known[i] is None)]
    return torch.tensor(unknown, device=device) if unknown else None


def report(callback: Callable[[Any], None], value: Any) -> None:
    """A sink that raises is its owner's bug: it must not take the engine down with it."""
    try:
        callback(value)
    except Exception:
        log.exception("a request's callback raised")


def _note_prompt_logprobs(job: Generation, output: StepOutput, logits: torch.Tensor) -> None:
    """Logits of position p give the logprob of the prompt token at p + 1."""
    start = job.request.params.prompt_logprobs_start
    if start is None:
        return
    prompt = job.request.token_ids
    count = min(output.row_count, len(prompt) - 1 - output.first_position)
    rows = logits[output.row_start : output.row_start + count]
    first = output.first_position + 1
    for offset, logprob in enumerate(
        token_logprobs(rows, prompt[first : first + count], job.request.params.top_logprobs)
    ):
        if first + offset >= start:
            job.note_prompt_logprob(first + offset, logprob)


def _rows(logits: torch.Tensor, num_rows: int, rows: list[int]) -> torch.Tensor:
    """The rows asked for; the very same tensor when that is all of its `num_rows`, which saves a copy in pure decode
    steps. The number is the caller's: to ask a tensor for its length takes 30 us with caches full of weights."""
    return logits if rows == list(range(num_rows)) else logits[rows]
