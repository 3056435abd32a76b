"""The two common kinds of tasks: one of several answers by their log-probabilities, and a generated answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmprog.choices import sum_logprob
from lmprog.errors import InvalidArgument, UnsupportedParameter
from lmprog.evaluation.metrics import choice_metrics, pass_at_k
from lmprog.evaluation.task import Asking, Outcome, Task
from lmprog.few_shot import Template, few_shot
from lmprog.language import assistant, assistant_begin, assistant_end, gen, select, system, user
from lmprog.state import State

Row = Mapping[str, Any]
NO_SCORES = "This backend has no log-probabilities of given texts, as chat APIs have none, so it cannot score choices;"
HOW_TO_SCORE = "use a model here (lmprog eval TASK --model smollm2-135m) or behind lmprog serve (--url)."


@dataclass(frozen=True, kw_only=True)
class _Questions(Task):
    """question: a format text over the item's keys, or a function of the item. description: stands before all, in chats
    as the system turn. delimiter: between question and answer in plain text; separator: after each example."""

    question: Template
    description: str = ""
    delimiter: str = " "
    separator: str = "\n\n"

    def shot_answer(self, item: Row) -> str:
        """What an example answers, without the delimiter."""
        raise NotImplementedError

    def question_text(self, item: Row) -> str:
        return few_shot([item], self.question)

    def order(self, item: Row) -> str:
        return self.question_text(item)

    def write_prompt(self, s: State, item: Row, shots: Sequence[Row], asking: Asking) -> None:
        """All before the answer. A chat is left inside the open assistant turn."""
        if asking.style == "plain":
            s += self.description + self._examples(shots) + self.question_text(item)
            return
        if self.description:
            s += system(self.description)
        if asking.style == "turns":
            for shot in shots:
                s += user(self.question_text(shot)) + assistant(self.shot_answer(shot))
        s += user(("" if asking.style == "turns" else self._examples(shots)) + self.question_text(item))
        s += assistant_begin()

    def _examples(self, shots: Sequence[Row]) -> str:
        texts = [self.question_text(shot) + self.delimiter + self.shot_answer(shot) for shot in shots]
        return "".join(text + self.separator for text in texts)

    def before_answer(self, asking: Asking) -> str:
        """Text between the prompt and the answer: none after the header of a chat's turn."""
        return self.delimiter if asking.style == "plain" else ""

    def end_answer(self, s: State, asking: Asking) -> None:
        if asking.style != "plain":
            s += assistant_end()


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(_Questions):
    """choices: the answers of an item; target: the index of the right one. Metrics: acc, acc_norm, acc_bytes."""

    choices: Callable[[Row], Sequence[str]]
    target: Callable[[Row], int]

    def shot_answer(self, item: Row) -> str:
        return self.choices(item)[self._checked_target(item)]

    def ask(self, s: State, item: Row, shots: Sequence[Row], asking: Asking) -> None:
        if asking.samples > 1:
            raise InvalidArgument(f"Task {self.name!r} scores choices; samples are for generated answers.")
        if not s._run.backend.supports("choice_logprobs"):
            raise UnsupportedParameter(NO_SCORES, hint=HOW_TO_SCORE)
        self.write_prompt(s, item, shots, asking)
        between = self.before_answer(asking)
        texts = [between + choice for choice in self.choices(item)]
        s += select("choice", texts, choices_method=sum_logprob, logprobs=True)
        s["texts"] = texts
        self.end_answer(s, asking)

    def score(self, s: State, item: Row) -> Outcome:
        meta = s.get_meta_info("choice")
        found = dict(zip(meta["choices"], meta["logprobs"], strict=True))
        choices, target = self.choices(item), self._checked_target(item)
        logprobs = [sum(found[text]) for text in s["texts"]]
        prediction = max(range(len(choices)), key=logprobs.__getitem__)
        details = {"target": target, "prediction": prediction, "logprobs": logprobs}
        return Outcome(choice_metrics(logprobs, choices, target), details)

    def _checked_target(self, item: Row) -> int:
        target, count = self.target(item), len(self.choices(item))
        if not isinstance(target, int) or not 0 <= target < count:
            raise InvalidArgument(f"Task {self.name!r}: target {target!r} is not the index of one of {count} choices.")
        return target


@dataclass(frozen=True, kw_only=True)
class Generation(_Questions):
    """answer: what an example answers. target: the right answer of an item, compared after `normalize`.

    extract: a regular expression that finds the answer in the output: its last match counts, and of that the first
    group if it has one. check: decides instead of the comparison whether an output is right (for code: run its tests).
    Metrics: exact_match (with several samples their mean), or `correct` with a check; pass@k for the k in pass_at.
    """

    answer: Template
    target: Callable[[Row], str]
    extract: str | None = None
    normalize: Callable[[str], str] = str.strip
    check: Callable[[Row, str], bool] | None = None
    pass_at: Sequence[int] = ()
    max_tokens: int = 256
    stop: Sequence[str] = ()

    def shot_answer(self, item: Row) -> str:
        return few_shot([item], self.answer)

    def ask(self, s: State, item: Row, shots: Sequence[Row], asking: Asking) -> None:
        if asking.samples < max(self.pass_at, default=1):
            raise InvalidArgument(f"pass@{max(self.pass_at)} needs as many samples; there are {asking.samples}.")
        self.write_prompt(s, item, shots, asking)
        s += self.before_answer(asking).rstrip(" ")  # the model writes the space itself, with the word after it
        s += gen(
            "answer",
            self.max_tokens,
            n=asking.samples,
            temperature=asking.temperature,
            seed=asking.seed,
            stop=list(self.stop) or None,
        )
        self.end_answer(s, asking)

    def score(self, s: State, item: Row) -> Outcome:
        found = s["answer"]
        outputs: list[str] = [found] if isinstance(found, str) else list(found)
        answers = [self.extracted(output) for output in outputs]
        target = self.normalize(self.target(item))
        right = [self._is_right(item, each, answer, target) for each, answer in zip(outputs, answers, strict=True)]
        metrics = {"correct" if self.check else "exact_match": sum(right) / len(right)}
        metrics |= {f"pass@{k}": pass_at_k(len(right), sum(right), k) for k in self.pass_at}
        return Outcome(metrics, {"target": target, "predictions": answers, "outputs": outputs, "right": right})

    def _is_right(self, item: Row, output: str, answer: str | None, target: str) -> bool:
        return answer == target if self.check is None else bool(self.check(item, output))

    def extracted(self, output: str) -> str | None:
        """The answer in an output; None when the expression finds none."""
        if self.extract is None:
            return self.normalize(output)
        matches = list(re.finditer(self.extract, output))
        if not matches:
            return None
        last = matches[-1]
        return self.normalize(last.group(1) if last.re.groups else last.group())
