"""Tasks that come with lmprog, for data in the format of well-known benchmarks. The data is the user's own file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lmprog.evaluation.data import Data
from lmprog.evaluation.kinds import Generation, MultipleChoice
from lmprog.evaluation.task import Task

Row = Mapping[str, Any]
NUMBER = r"-?[0-9][0-9,]*(?:\.[0-9]+)?"


def hellaswag(data: Data, shots_data: Data | None = None) -> Task:
    """Items with endings, label, and either ctx or activity_label, ctx_a and ctx_b as published."""
    return MultipleChoice(
        name="hellaswag",
        data=data,
        shots_data=shots_data,
        question=_hellaswag_context,
        choices=lambda item: [_cleaned(ending) for ending in item["endings"]],
        target=lambda item: int(item["label"]),
    )


def _hellaswag_context(item: Row) -> str:
    if "activity_label" not in item:
        return str(item["ctx"])
    return _cleaned(f"{item['activity_label']}: {item['ctx_a']} {item['ctx_b'].capitalize()}")


def _cleaned(text: str) -> str:
    """As lm-evaluation-harness prepares HellaSwag: bracketed marks are leftovers of WikiHow."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def gsm8k(data: Data, shots_data: Data | None = None) -> Task:
    """Items with question and answer, the answer ending in "#### number". The last number of an output counts."""
    return Generation(
        name="gsm8k",
        data=data,
        shots_data=shots_data,
        question="Question: {question}\nAnswer:",
        answer="{answer}",
        target=lambda item: str(item["answer"]).rpartition("####")[2],
        extract=NUMBER,
        normalize=lambda text: text.strip().replace(",", ""),
        stop=["Question:", "\n\n"],
    )


FORMATS: Mapping[str, Callable[..., Task]] = {"hellaswag": hellaswag, "gsm8k": gsm8k}
