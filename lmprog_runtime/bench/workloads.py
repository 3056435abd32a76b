"""Shapes of work in which prompts share something, made from a seed; the yardsticks of `lmprog bench peers`.

All prompts of a workload have one length, so that no side pads; lengths of answers are fixed, except for JSON.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from lmprog_runtime.bench.datasets import TokenSource
from lmprog_runtime.model.tokenizer import Tokenizer

Ids = list[int]

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "job": {"enum": ["doctor", "teacher", "farmer", "engineer", "other"]},
            "city": {"type": "string", "maxLength": 24},
            "married": {"type": "boolean"},
            "hobby": {"type": "string", "maxLength": 32},
        },
        "required": ["name", "age", "job", "city", "married", "hobby"],
        "additionalProperties": False,
    }
)
_INSTRUCTION = (
    "You turn texts about people into JSON objects. An object has the keys name, age, job, city, married and hobby, in "
    "this order. Take the values from the text alone and guess nothing that the text does not say. "
)
_FACTS = (
    "{name} was born {age} years ago. The people of {city} know {name} as a {job}. At the weekend {name} likes {hobby} "
    "more than anything else. It has rained for three days now, and the river is high. "
)
_NAMES = ("Ann Lee", "Tom Okafor", "Maria Lopez", "Jan Novak", "Mei Wu", "Sara Berg", "Omar Aziz", "Ivan Petrov")
_CITIES = ("Lima", "Oslo", "Accra", "Prague", "Quito", "Hanoi", "Cairo", "Perth")
_JOBS = ("doctor", "teacher", "farmer", "engineer", "painter")
_HOBBIES = ("chess", "rowing", "old maps", "baking bread", "the violin", "beekeeping")


class Workload(NamedTuple):
    name: str
    prompts: list[Ids]
    new_tokens: int  # of each answer; the most, for JSON
    shared_len: int = 0  # tokens that all prompts begin with
    choices: list[list[Ids]] | None = None  # per prompt: score these instead of generating
    later_turns: list[list[Ids]] | None = None  # per prompt: what the user says after each answer
    schema: str | None = None  # answers are JSON of this schema
    answer_lens: tuple[int, ...] = ()  # of JSON, as generated here: for sides that have no grammar to end an answer


def make_workloads(tokenizer: Tokenizer, seed: int, scale: float) -> list[Workload]:
    """`scale` multiplies shared lengths and numbers of requests, of which there are at least 2."""
    source = TokenSource(tokenizer, seed)

    def shared(length: int) -> Ids:
        return source.ids(max(1, int(length * scale)))

    def count(number: int) -> int:
        return max(2, int(number * scale))

    examples, context, trunk = shared(1000), shared(500), shared(800)
    questions = [context + source.ids(30) for _ in range(count(32))]
    sessions = [source.ids(100) for _ in range(count(8))]
    return [
        Workload("few-shot", [examples + source.ids(40) for _ in range(count(64))], 16, len(examples)),
        Workload("choices", questions, 0, len(context), choices=[[source.ids(6) for _ in range(4)] for _ in questions]),
        Workload("chat", sessions, 32, later_turns=[[source.ids(100) for _ in range(3)] for _ in sessions]),
        Workload("fork", [trunk + source.ids(4) for _ in range(count(16))], 64, len(trunk)),
        _extraction(tokenizer, source, count(32), scale),
        Workload("one stream", [source.ids(128)], 128),
        Workload("batch of 16", [source.ids(128) for _ in range(16)], 128),
    ]


def _extraction(tokenizer: Tokenizer, source: TokenSource, count: int, scale: float) -> Workload:
    instruction = _cut(tokenizer, _INSTRUCTION, max(1, int(300 * scale)))
    documents = [_cut(tokenizer, _document(source), 150) for _ in range(count)]
    ending = tokenizer.encode("\nJSON:\n")
    prompts = [instruction + document + ending for document in documents]
    return Workload("JSON extraction", prompts, 96, len(instruction), schema=SCHEMA)


def _document(source: TokenSource) -> str:
    def one(words: tuple[str, ...]) -> str:
        return words[int(source.generator.integers(len(words)))]

    name, age = one(_NAMES), int(source.generator.integers(18, 90))
    return _FACTS.format(name=name, age=age, city=one(_CITIES), job=one(_JOBS), hobby=one(_HOBBIES))


def _cut(tokenizer: Tokenizer, text: str, length: int) -> Ids:
    """The first `length` tokens of the text said again and again."""
    ids = tokenizer.encode(text)
    return (ids * (length // len(ids) + 1))[:length]
