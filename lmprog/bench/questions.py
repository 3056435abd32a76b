"""Question answering programs of the SGLang paper: few-shot choices and reasoning, votes, trees, skeletons, judges.

Free text has a fixed length (`ignore_eos`), so that every ablation does the same work.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from lmprog.bench.branching import in_branches, numbered
from lmprog.few_shot import few_shot
from lmprog.language import assistant, gen, select, system, user
from lmprog.program import function
from lmprog.state import State

Item = dict[str, Any]

LETTERS = ["A", "B", "C", "D"]
GRADES = ["1", "2", "3", "4", "5"]
DIMENSIONS = ["clarity", "depth", "style"]
VOTES, THOUGHTS, DEPTH, POINTS = 5, 3, 2, 4


def exam_question(item: Any) -> str:
    options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, item["choices"], strict=True))
    return f"Question: {item['question']}\n{options}\nAnswer:"


def _answered(item: Any) -> str:
    return f"{exam_question(item)} {LETTERS[item['answer']]}\n\n"


@function
def mmlu(s: State, examples: list[Item], item: Item) -> None:
    s += few_shot(examples, _answered) + exam_question(item) + select("answer", [f" {letter}" for letter in LETTERS])


@function
def hellaswag(s: State, examples: list[Item], item: Item) -> None:
    def finished(example: Any) -> str:
        return f"{example['ctx']} {example['endings'][example['label']]}\n\n"

    s += few_shot(examples, finished) + item["ctx"] + select("ending", [f" {ending}" for ending in item["endings"]])


def _solved(examples: list[Item]) -> str:
    return few_shot(examples, "Question: {question}\nAnswer: {answer}\n\n")


@function
def gsm8k(s: State, examples: list[Item], item: Item) -> None:
    s += f"{_solved(examples)}Question: {item['question']}\nAnswer:"
    s += gen("answer", max_tokens=48, temperature=0, ignore_eos=True)


@function
def self_consistency(s: State, examples: list[Item], item: Item, parallel: bool) -> str:
    """Several answers, and the end that most of them have."""
    s += f"{_solved(examples)}Question: {item['question']}\nAnswer:"

    def vote(name: str, branch: State) -> None:
        branch += gen("answer", max_tokens=48, temperature=0.8, seed=int(name), ignore_eos=True)

    answers: list[str] = [branch["answer"] for branch in in_branches(s, numbered(VOTES), parallel, vote)]
    ends = Counter(end for answer in answers for end in answer.split()[-1:])
    return max(ends, key=ends.__getitem__, default="")


@function
def tree_of_thought(s: State, item: Item, parallel: bool) -> None:
    """Propose steps, grade each, go on with the best."""
    s += user(f"{item['question']}\nThink in short steps.")

    def think(name: str, branch: State) -> None:
        branch += assistant(gen("step", max_tokens=32, temperature=0.8, seed=int(name), ignore_eos=True))
        branch += user("From 1 to 5, how helpful is this step?")
        branch += assistant(select("grade", GRADES))

    for _ in range(DEPTH):
        thoughts = in_branches(s, numbered(THOUGHTS), parallel, think)
        best = max(thoughts, key=lambda branch: int(branch["grade"]))
        s += assistant(best["step"]) + user("Go on.")
    s += assistant(gen("answer", max_tokens=32, temperature=0, ignore_eos=True))


@function
def skeleton_of_thought(s: State, item: Item, parallel: bool) -> None:
    """A skeleton first, its points written at the same time."""
    s += system("You answer in an orderly way.") + user(f"List {POINTS} short points on this: {item['question']}")
    s += assistant(gen("skeleton", max_tokens=40, temperature=0, ignore_eos=True))

    def write(name: str, branch: State) -> None:
        branch += user(f"Write a few sentences about point {name} and nothing else.")
        branch += assistant(gen("part", max_tokens=40, temperature=0, ignore_eos=True))

    parts = in_branches(s, numbered(POINTS), parallel, write)
    s += user("All parts:\n" + "\n".join(part["part"] for part in parts) + "\nSum them up.")
    s += assistant(gen("summary", max_tokens=32, temperature=0, ignore_eos=True))


@function
def judge(s: State, essay: str, parallel: bool) -> None:
    """Branch, solve, merge: each dimension judged on its own, then a grade from all of them."""
    s += system("You grade essays.") + user(f"Read this essay.\n\n{essay}") + assistant("I have read it.")

    def assess(name: str, branch: State) -> None:
        branch += user(f"In one sentence, judge its {name}.")
        branch += assistant(gen("note", max_tokens=40, temperature=0, ignore_eos=True))

    notes = in_branches(s, DIMENSIONS, parallel, assess)
    s += user("Notes:\n" + "\n".join(f"- {note['note']}" for note in notes) + "\nGive a grade from 1 to 5.")
    s += assistant(select("grade", GRADES))
