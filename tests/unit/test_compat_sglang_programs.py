"""SGLang's own test programs, unmodified, on lmprog. The scripted backend stands in for a competent model."""

from __future__ import annotations

import json

import pytest

from lmprog import ScriptedBackend
from lmprog.backends.base import TokenLogprob
from tests.support.sglang_programs import fetch, programs_of

LONG = "Aloha and welcome to the islands. " * 20
ANSWERS = {
    r"the United States\?\nA:$": " Washington\nQ:",
    r"of Japan\?\nA:$": " Tokyo\n",
    r"United Kingdom\?\nA:$": " London\n",
    r"of China\?\nA:$": " Beijing\n",
    r"Berlin\.\nAnswer:$": "True",
    r"Tokyo\.\nAnswer:$": "False",
    r"green\.\nAnswer:$": "Unknown",
    "in a day is $": "24",
    "in a year is $": "365",
    '"name": $': '"Paris"',
    '"population": $': "2100000",
    '"area": $': "105",
    '"latitude": $': "48.85",
    '"country": $': '"France"',
    '"timezone": $': '"CET"',
    "this question is$": " a geographer. Or",
    "would answer that $": "it is Paris.",
    r"is calculate\($": "257*983) = 1",
    r"Thought \d:$": " I need to search.",
    "Action 1: $": "Search",
    r"Search \[$": "creator of Linux]",
    r"Observation \d:$": " It is Linus Torvalds.",
    "Action 2: $": "Finish",
    r"Finish \[$": "Finland]",
    r"Julian\?\nASSISTANT:$": " Noah.",
    "DNS servers.*A: $": "8.8.8.8",
    "full names is $": '"Domain Name System"\n',
    r"DNS invented\?\nA: $": "1983",
    r"value of pi\?\nA: $": "3.14",
    r"sky blue\?\nA: $": "True",
    "generate new.*Name:$": " Ada.\nBirthday: 1815.\nJob: poet.\n",
    "generate new.*Birthday:$": " 1815.\nJob: poet.\n",
    "generate new.*Job:$": " poet.\n",
    "<image.*assistant\n$": "A yellow taxi in a street.",
    "assistant\n$": LONG,
    r"\Z": lambda call: call.choices[0] if call.choices else "something else.\n\nAnd more",
}


class Words:
    """A tokenizer for the scripted backend, whose tokens are words."""

    def encode(self, text):
        return text.split()


class CompetentBackend(ScriptedBackend):
    tokenizer = Words()

    def _generate(self, call, known_words):
        result = super()._generate(call, known_words)
        if not call.sampling.logprobs:
            return result
        words = (TokenLogprob(word, number, -0.5) for number, word in enumerate(result.text.split()))
        return result._replace(logprobs=tuple(words))


@pytest.fixture
def sgl(sgl):
    sgl.set_default_backend(CompetentBackend(ANSWERS))
    return sgl


def _questions(path):
    """As many questions as a program wants that would fetch them."""
    rows = [
        {"activity_label": "Cooking", "ctx": f"Step {i}. he", "endings": ["stirs.", "sings.", "flies."], "label": i % 3}
        for i in range(200)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("version", "count"),
    [("0.5.6", 19), pytest.param("0.5.23", 19, marks=pytest.mark.slow)],
)
def test_all_programs(sgl, pytestconfig, tmp_path, version, count):
    module = fetch(version, pytestconfig.cache.mkdir("sglang-wheels"))
    tests = programs_of(module)
    assert len(tests) == count
    module.download_and_cache_file = lambda url: _questions(tmp_path / "questions.jsonl")  # offline
    for name, test in tests.items():
        arguments = {"check_answer": True} if name == "test_select" else {}
        try:
            test(**arguments)
        except Exception as error:
            raise AssertionError(f"{name} of sglang {version}") from error
