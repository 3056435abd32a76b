"""Agents, conversations, extraction and retrieval: programs of the SGLang paper that call the model again and again.

Agents are replays: what tools and other agents said is recorded, so that every run makes the same calls.
"""

from __future__ import annotations

from typing import Any

from lmprog.bench.branching import in_branches, numbered
from lmprog.language import assistant, gen, system, user
from lmprog.program import function
from lmprog.state import State

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "job": {"enum": ["doctor", "teacher", "farmer", "engineer", "other"]},
        "city": {"type": "string", "maxLength": 20},
        "favourite_hobby": {"type": "string", "maxLength": 20},
    },
    "required": ["name", "age", "job", "city", "favourite_hobby"],
    "additionalProperties": False,
}


@function
def react_replay(s: State, instruction: str, question: str, observations: list[str]) -> None:
    s += f"{instruction}\n\nQuestion: {question}\n"
    for number, observation in enumerate(observations, 1):
        s += f"Thought {number}:" + gen(f"thought{number}", max_tokens=24, temperature=0, ignore_eos=True)
        s += f"\nObservation {number}: {observation}\n"
    s += "Answer:" + gen("answer", max_tokens=16, temperature=0, ignore_eos=True)


@function
def agents_replay(s: State, world: str, persona: str, events: list[str]) -> None:
    """One agent's day: after each event, how much it matters and what to do."""
    s += system(f"{world}\n\n{persona}")
    for number, event in enumerate(events, 1):
        s += user(f"{event} How much does it matter, from 1 to 9?")
        s += assistant(gen(f"weight{number}", regex="[1-9]", temperature=0))
        s += user("What do you do now?")
        s += assistant(gen(f"act{number}", max_tokens=16, temperature=0, ignore_eos=True))


@function
def json_extraction(s: State, instruction: str, document: str) -> None:
    s += system(instruction) + user(document)
    s += assistant(gen("person", schema=PERSON, max_tokens=96, temperature=0))


@function
def chat(s: State, opening: str, questions: list[str], answer_tokens: int) -> None:
    s += system(opening)
    for number, question in enumerate(questions, 1):
        s += user(question)
        s += assistant(gen(f"answer{number}", max_tokens=answer_tokens, temperature=0, ignore_eos=True))


@function
def rag(s: State, instruction: str, passages: list[str], question: str, parallel: bool) -> None:
    """What each passage says on the question, then an answer from all of that."""
    s += system(instruction)

    def read(name: str, branch: State) -> None:
        branch += user(f"Passage:\n{passages[int(name) - 1]}\n\nWhat does it say about this? {question}")
        branch += assistant(gen("found", max_tokens=24, temperature=0, ignore_eos=True))

    found = in_branches(s, numbered(len(passages)), parallel, read)
    s += user("Findings:\n" + "\n".join(branch["found"] for branch in found) + f"\n\nNow answer: {question}")
    s += assistant(gen("answer", max_tokens=32, temperature=0, ignore_eos=True))
