"""What the programs are about: items made from a seed, or read from JSON Lines files of the user."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from lmprog.errors import InvalidArgument
from lmprog.json_lines import read_objects

Item = dict[str, Any]

FIELDS = {
    "mmlu": ("question", "choices", "answer"),
    "hellaswag": ("ctx", "endings", "label"),
    "gsm8k": ("question", "answer"),
    "documents": ("text",),
}
"""Kinds of files for --data, and what each line has. `answer` of mmlu and `label` are indices of the right choice."""

_WORDS = (
    "river",
    "stone",
    "winter",
    "garden",
    "letter",
    "market",
    "bridge",
    "mountain",
    "teacher",
    "kitchen",
    "window",
    "summer",
    "harbour",
    "forest",
    "village",
    "road",
    "clock",
    "paper",
    "horse",
    "island",
    "song",
    "lamp",
    "coat",
    "field",
    "train",
    "ship",
    "bread",
    "door",
    "table",
    "storm",
)
_VERBS = (
    "crosses",
    "finds",
    "paints",
    "carries",
    "remembers",
    "builds",
    "watches",
    "opens",
    "follows",
    "sells",
    "repairs",
    "answers",
)
_NAMES = ("Ann", "Tom", "Maria", "Jan", "Mei", "Sara", "Omar", "Ivan", "Lena", "Paul")
_JOBS = ("doctor", "teacher", "farmer", "engineer", "painter")


class Source:
    """Items by kind: made, or those of the kind's file in their order, from its start again at its end."""

    def __init__(self, seed: int, files: Mapping[str, Path]) -> None:
        self.random = Random(seed)
        self._read = {kind: read_items(kind, path) for kind, path in files.items()}

    def items(self, kind: str, count: int) -> list[Item]:
        given = self._read.get(kind)
        if given is not None:
            return [given[index % len(given)] for index in range(count)]
        made: list[Item] = [getattr(self, f"_{kind}")() for _ in range(count)]
        return made

    def prose(self, sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(sentences))

    def sentence(self) -> str:
        word, verb, name = self.random.choice, self.random.choice(_VERBS), self.random.choice(_NAMES)
        return f"{name} {verb} the {word(_WORDS)} by the {word(_WORDS)} before the {word(_WORDS)} is gone."

    def _mmlu(self) -> Item:
        question = f"{self.sentence()} {self.sentence()} Which of these fits best?"
        return {"question": question, "choices": self.random.sample(_WORDS, 4), "answer": self.random.randrange(4)}

    def _hellaswag(self) -> Item:
        return {"ctx": self.prose(2), "endings": [self.sentence() for _ in range(4)], "label": self.random.randrange(4)}

    def _gsm8k(self) -> Item:
        name, thing = self.random.choice(_NAMES), self.random.choice(_WORDS)
        a, b, c = (self.random.randrange(2, 60) for _ in range(3))
        question = f"{name} has {a} {thing}s, buys {b} more and then gives {c} away. How many are there now?"
        return {"question": question, "answer": f"{a} + {b} = {a + b}. {a + b} - {c} = {a + b - c}. #### {a + b - c}"}

    def _documents(self) -> Item:
        name, job, age = self.random.choice(_NAMES), self.random.choice(_JOBS), self.random.randrange(18, 90)
        about = f"{name} is {age} years old, works as a {job} and likes the {self.random.choice(_WORDS)}."
        return {"text": f"{self.prose(2)} {about} {self.prose(2)}"}


def read_items(kind: str, path: Path) -> list[Item]:
    """InvalidArgument with the number of a line that lacks a field."""
    items = [_checked(kind, path, number, item) for number, item in read_objects(path)]
    if not items:
        raise InvalidArgument(f"{path} has no items.")
    return items


def _checked(kind: str, path: Path, number: int, item: Item) -> Item:
    missing = [field for field in FIELDS[kind] if field not in item]
    if missing:
        raise InvalidArgument(f"{path}, line {number} has no {' and no '.join(missing)}.")
    return item


def parse_files(given: list[str]) -> dict[str, Path]:
    """--data KIND=FILE."""
    files = {}
    for text in given:
        kind, sign, path = text.partition("=")
        if not sign or kind not in FIELDS:
            raise InvalidArgument(f"--data {text!r} is not KIND=FILE; the kinds are {', '.join(FIELDS)}.")
        files[kind] = Path(path)
    return files
