"""What jump-forward saves on extraction: the share of tokens that are not sampled, and wall time with it over without.

    python scripts/jump_forward.py [--rounds 3] [--concurrency 8]

The default model reads short documents and fills a schema, greedily. With and without jump-forward run in turn, round
by round, so that the machine's moods hit both; the ratio is that of the medians. "same text" is the share of documents
with the same text: all, but for rounding, as both write a forced text in the tokenizer's own tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `scripts`

from lmprog_runtime.request import Completion, Constraint, SamplingParams
from lmprog_runtime.runtime import LocalRuntime
from scripts.generations import submit

PARAMS = SamplingParams(max_tokens=200, temperature=0.0)

DOCUMENTS = [
    "Ada Lovelace, born in London in 1815, wrote the first program. She was a mathematician.",
    "The Brooklyn Bridge opened in 1883. It spans 1834 metres between Manhattan and Brooklyn.",
    "Invoice 4711 of 3 May 2021: two chairs at 49.50 euros each, one table at 180 euros, paid by card.",
    "Marie Curie was born in Warsaw in 1867. She won Nobel prizes in physics and in chemistry.",
    "The flight LH 400 left Frankfurt at 10:50 and landed in New York at 13:25, forty minutes late.",
    "Patient, 54, male, complains of chest pain since Monday; blood pressure 150 over 95; no known allergies.",
    "The recipe takes 200 grams of flour, two eggs and a pinch of salt, and bakes for 35 minutes at 180 degrees.",
    "Order 99-12: a red bicycle for Jane Roe, 12 High Street, Leeds, to be delivered on Tuesday.",
]


def _record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT, INTEGER = {"type": "string", "maxLength": 30}, {"type": "integer", "minimum": 0, "maximum": 9999}
SCHEMAS: dict[str, Any] = {
    "flat record": _record(title=TEXT, year=INTEGER, category={"enum": ["person", "place", "event", "transaction"]}),
    "nested record": _record(
        subject=_record(full_name=TEXT, description=TEXT),
        location=_record(city=TEXT, country_code={"type": "string", "pattern": "^[A-Z]{2}$"}),
        confidence_percentage={"type": "integer", "minimum": 0, "maximum": 100},
    ),
    "checklist": _record(
        mentions_a_person={"type": "boolean"},
        mentions_a_date={"type": "boolean"},
        mentions_an_amount={"type": "boolean"},
        overall_sentiment={"enum": ["positive", "neutral", "negative"]},
    ),
    "list of records": {
        "type": "array", "minItems": 2, "maxItems": 3, "items": _record(attribute_name=TEXT, attribute_value=TEXT),
    },
}  # fmt: skip


class Run(NamedTuple):
    seconds: float
    texts: tuple[str, ...]
    tokens: int
    forced: int


def run(runtime: LocalRuntime, schema: Any, concurrency: int) -> Run:
    constraint = Constraint("json_schema", json.dumps(schema))
    runtime.flush_cache()
    start = time.perf_counter()
    done: list[Completion] = []
    for at in range(0, len(DOCUMENTS), concurrency):
        prompts = [f"Text: {document}\nJSON: " for document in DOCUMENTS[at : at + concurrency]]
        futures = [submit(runtime, prompt, PARAMS, constraint) for prompt in prompts]
        done += [future.result() for future in futures]
    seconds = time.perf_counter() - start
    usage = [completion.usage for completion in done]
    texts = tuple(completion.text for completion in done)
    return Run(seconds, texts, sum(u.completion_tokens for u in usage), sum(u.forced_tokens for u in usage))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=8)
    arguments = parser.parse_args()
    runtimes = [
        LocalRuntime.start(model=arguments.model, dtype=arguments.dtype, jump_forward=jumps) for jumps in (False, True)
    ]
    print("| workload | tokens | not sampled | time with / without | same text |\n|---|---|---|---|---|")
    for name, schema in SCHEMAS.items():
        for runtime in runtimes:
            run(runtime, schema, arguments.concurrency)  # compiles the constraint, warms the masks
        rounds = [
            [run(runtime, schema, arguments.concurrency) for runtime in runtimes] for _ in range(arguments.rounds)
        ]
        print(table_row(name, rounds), flush=True)
    for runtime in runtimes:
        runtime.close()


def table_row(name: str, rounds: list[list[Run]]) -> str:
    without, jumping = zip(*rounds, strict=True)
    ratio = statistics.median(r.seconds for r in jumping) / statistics.median(r.seconds for r in without)
    last = jumping[-1]
    same = sum(map(eq, last.texts, without[-1].texts)) / len(last.texts)
    return f"| {name} | {last.tokens} | {last.forced / last.tokens:.0%} | {ratio:.2f} | {same:.0%} |"


if __name__ == "__main__":
    main()
