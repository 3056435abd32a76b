"""Which programs are run on which items."""

from __future__ import annotations

from typing import Any, NamedTuple

from lmprog.bench import agents, questions
from lmprog.bench.data import Source
from lmprog.errors import InvalidArgument
from lmprog.program import Program

Items = list[dict[str, Any]]

SHOTS = 8


class Case(NamedTuple):
    name: str
    program: Program[..., Any]
    items: Items  # arguments, without `parallel`
    forks: bool = False  # the program takes `parallel`
    constrained: bool = False  # it has forced text to jump over


def suite(source: Source, count: int, shots: int = SHOTS) -> list[Case]:
    """All programs, `count` runs of each; few-shot ones have `shots` examples."""
    others = [case for part in (_branching, _agents, _talk) for case in part(source, count)]
    return [*_few_shot(source, count, shots), *others]


def _few_shot(source: Source, count: int, number: int) -> list[Case]:
    def shots(kind: str, name: str, program: Program[..., Any], *, forks: bool = False) -> Case:
        examples = source.items(kind, number + count)
        return Case(name, program, [{"examples": examples[:number], "item": i} for i in examples[number:]], forks)

    return [
        shots("mmlu", "MMLU-style, few-shot", questions.mmlu),
        shots("hellaswag", "HellaSwag, select", questions.hellaswag),
        shots("gsm8k", "GSM8K, few-shot", questions.gsm8k),
        shots("gsm8k", "self-consistency", questions.self_consistency, forks=True),
    ]


def _branching(source: Source, count: int) -> list[Case]:
    problems = [{"item": item} for item in source.items("gsm8k", count)]
    essays = [{"essay": source.prose(12)} for _ in range(count)]
    return [
        Case("tree of thought", questions.tree_of_thought, problems, forks=True),
        Case("skeleton of thought", questions.skeleton_of_thought, problems, forks=True),
        Case("judge (branch, solve, merge)", questions.judge, essays, forks=True),
    ]


def _agents(source: Source, count: int) -> list[Case]:
    def texts(number: int) -> list[str]:
        return [source.sentence() for _ in range(number)]

    instruction = f"Think and look things up by turns, as in this example.\n{source.prose(20)}"
    steps = [
        {"instruction": instruction, "question": source.sentence(), "observations": texts(3)} for _ in range(count)
    ]
    world = source.prose(12)
    days = [{"world": world, "persona": source.prose(4), "events": texts(3)} for _ in range(count)]
    return [
        Case("ReAct replay", agents.react_replay, steps),
        Case("generative agents replay", agents.agents_replay, days),
    ]


def _talk(source: Source, count: int) -> list[Case]:
    rule = f"You turn texts into JSON objects about the person in them. {source.prose(10)}"
    documents = [{"instruction": rule, "document": item["text"]} for item in source.items("documents", count)]
    opening = source.prose(10)
    talks = [{"opening": opening, "questions": [source.prose(2) for _ in range(4)]} for _ in range(count)]
    passages = [item["text"] for item in source.items("documents", 4)]
    asked = [{"instruction": opening, "passages": passages, "question": source.sentence()} for _ in range(count)]
    return [
        Case("JSON extraction", agents.json_extraction, documents, constrained=True),
        Case("chat, short answers", agents.chat, [talk | {"answer_tokens": 8} for talk in talks]),
        Case("chat, long answers", agents.chat, [talk | {"answer_tokens": 64} for talk in talks]),
        Case("RAG pipeline", agents.rag, asked, forks=True),
    ]


def named(cases: list[Case], names: list[str]) -> list[Case]:
    """The cases of these names, all when there are none; InvalidArgument for an unknown one."""
    known = [case.name for case in cases]
    for name in names:
        if name not in known:
            raise InvalidArgument(f"There is no program {name!r}; there are {'; '.join(known)}.")
    return [case for case in cases if not names or case.name in names]
