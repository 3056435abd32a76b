"""From numbers per item to an estimate with its error. The definitions are those of lm-evaluation-harness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float  # mean over items
    stderr: float | None  # sample standard deviation / sqrt(items); None for one item
    items: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and standard error. `fsum` makes both independent of the order of the items."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, count)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Estimate(mean, math.sqrt(variance / count), count)


def choice_metrics(logprobs: Sequence[float], choices: Sequence[str], target: int) -> dict[str, float]:
    """acc: the target has the highest log-probability. acc_norm: by characters of the choice; acc_bytes: by its bytes
    in UTF-8. Ties go to the earlier choice, and an empty choice loses by length."""
    characters = [len(choice) for choice in choices]
    sizes = [len(choice.encode()) for choice in choices]
    return {
        "acc": float(_best(logprobs) == target),
        "acc_norm": float(_best(_per_length(logprobs, characters)) == target),
        "acc_bytes": float(_best(_per_length(logprobs, sizes)) == target),
    }


def _per_length(logprobs: Sequence[float], lengths: Sequence[int]) -> list[float]:
    return [value / length if length else -math.inf for value, length in zip(logprobs, lengths, strict=True)]


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that at least one of k samples is right, without bias, from `samples` of which `correct` are.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", section 2.1.
    """
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)
