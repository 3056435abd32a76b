"""Typed extraction from many documents: each answer is valid JSON and a Python object."""

from dataclasses import dataclass
from typing import Literal

from lmprog import Runtime, assistant, function, gen, system, user


@dataclass
class Person:
    name: str
    age: int
    job: Literal["doctor", "teacher", "farmer", "engineer", "other"]


@function
def extract(s, document):
    s += system("You turn texts into JSON with the keys name, age and job.")
    s += user("Maria Lopez is 41 and has taught maths in Lima for ten years.")
    s += assistant('{"name":"Maria Lopez","age":41,"job":"teacher"}')
    s += user(document)
    s += assistant(gen("person", schema=Person, max_tokens=60, temperature=0))


DOCUMENTS = [
    "Ann Lee, 34, works as an engineer at a bridge company.",
    "At 52, Tom Okafor still farms the land of his parents.",
    "Dr. Wu (29) sees her patients in a small village hospital.",
]


def main(backend):
    states = extract.run_batch([{"document": text} for text in DOCUMENTS], backend=backend)
    for state in states:
        print(state["person"])
    cached = sum(state.usage.cached_tokens for state in states)
    prompt = sum(state.usage.prompt_tokens for state in states)
    print(f"{cached} of {prompt} prompt tokens came from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
