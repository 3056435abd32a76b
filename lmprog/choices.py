"""How `select` picks: rules that turn the token log-probabilities of each choice into one number per choice.

    token_length_normalized             mean over the choice's tokens (the default)
    sum_logprob                         the probability of the whole choice
    per_byte                            sum, divided by the bytes of the choice in UTF-8
    greedy_token_selection              token by token, as a greedy decoder that may only write choices would
    unconditional_likelihood_normalized how much likelier the prompt makes the choice, per token

No rule adds the probability that the choice ends there. So by `sum_logprob` a choice never loses to one that continues
it ("cat", "catalogue"), and the empty choice, which has probability 1, wins; by the means, the empty choice loses.
Ties go to the earlier choice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lmprog.backends.base import ChoiceScore

Rule = Callable[[Sequence[ChoiceScore]], list[float]]


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """A named rule. `rule` gets the scores of all choices and returns one number for each; the highest wins."""

    name: str
    rule: Rule
    needs_unconditional: bool = False  # the choices are also scored without the prompt

    def __call__(self, scores: Sequence[ChoiceScore]) -> list[float]:
        return self.rule(scores)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else -math.inf


def _means(scores: Sequence[ChoiceScore]) -> list[float]:
    return [_mean(score.logprobs) for score in scores]


def _sums(scores: Sequence[ChoiceScore]) -> list[float]:
    return [sum(score.logprobs) for score in scores]


def _per_byte(scores: Sequence[ChoiceScore]) -> list[float]:
    return [sum(s.logprobs) / len(s.text.encode()) if s.text else -math.inf for s in scores]


def _unconditional(scores: Sequence[ChoiceScore]) -> list[float]:
    """Mean over tokens of log p(token | prompt, before) - log p(token | before).

    Source: Brown et al. 2020, "Language Models are Few-Shot Learners", section 2.4; here the neutral context is empty.
    """
    return [_gain(score) for score in scores]


def _gain(score: ChoiceScore) -> float:
    if not score.logprobs:
        return -math.inf
    return (sum(score.logprobs) - sum(score.unconditional or ())) / len(score.logprobs)


def _greedy(scores: Sequence[ChoiceScore]) -> list[float]:
    """1 for the choice that a greedy walk over the token trie ends at, else 0.

    At a position, choices that begin the same stay together; a choice that has ended there takes part with its mean
    log-probability, so that it wins over continuations that are less likely than it was so far.
    """
    alive = list(range(len(scores)))
    position = 0
    while len(alive) > 1 and any(position < len(scores[i].logprobs) for i in alive):
        best = max(alive, key=lambda i: _step_logprob(scores[i], position))
        alive = [i for i in alive if i == best or _go_together(scores[i], scores[best], position)]
        position += 1
    return [float(i == alive[0]) for i in range(len(scores))]


def _step_logprob(score: ChoiceScore, position: int) -> float:
    return score.logprobs[position] if position < len(score.logprobs) else _mean(score.logprobs)


def _go_together(a: ChoiceScore, b: ChoiceScore, position: int) -> bool:
    if position >= min(len(a.logprobs), len(b.logprobs)):
        return False
    if a.token_ids and b.token_ids:
        return a.token_ids[position] == b.token_ids[position]
    return a.logprobs[position] == b.logprobs[position]


token_length_normalized = ChoicesMethod("token_length_normalized", _means)
sum_logprob = ChoicesMethod("sum_logprob", _sums)
per_byte = ChoicesMethod("per_byte", _per_byte)
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy)
unconditional_likelihood_normalized = ChoicesMethod(
    "unconditional_likelihood_normalized", _unconditional, needs_unconditional=True
)

METHODS = {
    method.name: method
    for method in (
        token_length_normalized,
        sum_logprob,
        per_byte,
        greedy_token_selection,
        unconditional_likelihood_normalized,
    )
}


def pick(values: Sequence[float], temperature: float, seed: int | None) -> int:
    """Index of the highest value; above temperature 0, a draw from softmax(values / temperature)."""
    best = max(range(len(values)), key=values.__getitem__)
    if temperature == 0 or math.isinf(values[best]):
        return best
    weights = [math.exp((value - values[best]) / temperature) for value in values]
    return random.Random(seed).choices(range(len(values)), weights)[0]
