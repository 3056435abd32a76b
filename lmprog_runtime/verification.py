"""Proof mode: a share of the requests that hit the cache is computed again without it, and compared.

The recomputation is one extend over prompt and output with `use_cache=False`. Compared are the log-probabilities of the
sampled tokens; forced ones were never sampled.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from lmprog_runtime.request import Completion, GenerateRequest, SamplingParams, Sink

log = logging.getLogger("lmprog.verify")

TOLERANCE = {"float32": 1e-3}
LOOSE_TOLERANCE = 0.5  # other dtypes promise closeness, not equality


@dataclass(slots=True)
class VerifyReport:
    """What has been verified so far."""

    checked: int = 0  # requests
    mismatches: int = 0  # of those, the ones beyond the tolerance
    failed: int = 0  # recomputations that did not end
    max_difference: float = 0.0  # |difference of a log-probability|, natural log
    worst: list[str] = field(default_factory=list)  # one sentence per mismatch, the latest ten


class CacheVerifier:
    """Chooses requests, recomputes them through `submit`, keeps the report. Reports come in on the engine thread."""

    def __init__(self, share: float, dtype: str, submit: Callable[[GenerateRequest, Sink], int]) -> None:
        self._share, self._submit = share, submit
        self._tolerance = TOLERANCE.get(dtype, LOOSE_TOLERANCE)
        self._random = random.Random(0)
        self.report = VerifyReport()

    def wants(self, request: GenerateRequest) -> bool:
        """Whether to keep the log-probabilities of this request, so that it can be compared if it hits."""
        return request.use_cache and self._random.random() < self._share

    def check(self, request: GenerateRequest, completion: Completion, logprobs: list[float | None]) -> None:
        """Compute a finished request again. `logprobs` has one entry per output token; None: not to be compared."""
        if not completion.usage.cached_tokens:
            return
        prompt = len(request.token_ids)
        again = GenerateRequest(
            [*request.token_ids, *completion.token_ids],
            SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs_start=prompt),
            salt=request.salt,
            priority=request.priority - 1,
            use_cache=False,
        )
        compare = Sink(lambda _: None, lambda done: self._compare(logprobs, done, request), self._count_failure)
        self._submit(again, compare)

    def _compare(self, before: list[float | None], done: Completion, request: GenerateRequest) -> None:
        pairs = zip(before, done.prompt_logprobs, strict=True)
        differences = [abs(a - b.logprob) for a, b in pairs if a is not None and b.logprob is not None]
        worst = max(differences, default=0.0)
        self.report.checked += 1
        self.report.max_difference = max(self.report.max_difference, worst)
        if worst > self._tolerance:
            self.report.mismatches += 1
            sentence = f"A hit of {len(request.token_ids)} prompt tokens differs by {worst:.2g} from its recomputation."
            self.report.worst = [*self.report.worst[-9:], sentence]
            log.error("%s", sentence)

    def _count_failure(self, error: BaseException) -> None:
        self.report.failed += 1
        log.warning("a hit could not be computed again: %s", error)
