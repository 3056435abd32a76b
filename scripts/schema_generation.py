"""Does what a model generates under a schema satisfy it? The default model at a high temperature, over many schemas.

    python scripts/schema_generation.py [--schemas 300] [--temperature 1.5] [--max-tokens 160] [--whitespace flexible]

The schemas are evenly spread over JSONSchemaBench's development split, which lies beside the checkout
(../shared/data/jsonschemabench_dev.jsonl). Each is counted once: refused when it is compiled; its output complete and
valid, or invalid, as `jsonschema` judges; cut by --max-tokens, and a beginning that its grammar allows, or astray;
ended by a limit on masks; failed. Exits with 1 when an output is invalid or astray, or a generation fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `scripts`

import jsonschema

from lmprog_runtime.constraint.base import DEAD, Grammar
from lmprog_runtime.errors import ConstraintTooLarge, RequestRefused
from lmprog_runtime.request import Completion, Constraint, SamplingParams
from lmprog_runtime.runtime import LocalRuntime, constraint_compiler
from scripts.generations import submit

BENCH = Path(__file__).parents[1].parent / "shared" / "data" / "jsonschemabench_dev.jsonl"
WRONG = ("invalid", "astray", "failed")
PROMPT = "A JSON object that follows the schema:\n"


class Row(NamedTuple):
    name: str
    schema: Any


class Result(NamedTuple):
    name: str
    verdict: str  # valid, invalid, cut, astray, refused, limit, failed
    detail: str
    tokens: int


def load(path: Path = BENCH) -> list[Row]:
    with path.open() as lines:
        rows = [json.loads(line) for line in lines]
    return [Row(row["id"], row["schema"]) for row in rows]


def spread(rows: Sequence[Row], count: int) -> list[Row]:
    return [rows[at * len(rows) // count] for at in range(min(count, len(rows)))]


def judged(row: Row, grammar: Grammar, future: Future[Completion]) -> Result:
    error = future.exception()
    if error is not None:
        verdict = "limit" if isinstance(error, ConstraintTooLarge) else "failed"
        return Result(row.name, verdict, f"{type(error).__name__}: {error}", 0)
    completion = future.result()
    count = len(completion.token_ids)
    if not completion.is_complete:
        is_beginning = grammar.advance_bytes(grammar.start, completion.text.encode()) != DEAD
        return Result(row.name, "cut" if is_beginning else "astray", completion.text, count)
    problem = problem_of(row.schema, completion.text)
    return Result(row.name, "valid" if problem is None else "invalid", problem or completion.text, count)


def problem_of(schema: Any, text: str) -> str | None:
    """Why a text is no instance of a schema; None when it is one."""
    try:
        value = json.loads(text)
        validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator(schema).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{text!r}: {str(error).splitlines()[0]}"
    return None


def generate(
    runtime: LocalRuntime, rows: Sequence[Row], params: SamplingParams, *, whitespace: str = "compact", batch: int = 32
) -> Iterator[Result]:
    compiler = constraint_compiler(runtime.tokenizer)
    for at in range(0, len(rows), batch):
        started: list[tuple[Row, Grammar, Future[Completion]]] = []
        for row in rows[at : at + batch]:
            constraint = Constraint("json_schema", json.dumps(row.schema), whitespace)
            try:
                grammar = compiler(constraint, b"")
            except RequestRefused as error:
                yield Result(row.name, "refused", f"{type(error).__name__}: {error}", 0)
            else:
                started.append((row, grammar, submit(runtime, PROMPT, params, constraint)))
        yield from (judged(*each) for each in started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--whitespace", default="compact")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    runtime = LocalRuntime.start(model=arguments.model)
    params = SamplingParams(max_tokens=arguments.max_tokens, temperature=arguments.temperature, seed=arguments.seed)
    rows = spread(load(), arguments.schemas)
    start = time.perf_counter()
    results = list(generate(runtime, rows, params, whitespace=arguments.whitespace))
    spent = time.perf_counter() - start
    runtime.close()
    sys.exit(report(results, spent))


def report(results: Sequence[Result], seconds: float) -> int:
    counts = Counter(result.verdict for result in results)
    tokens = sum(result.tokens for result in results)
    print(f"{len(results)} schemas, {tokens} tokens in {seconds:.0f} s: {dict(counts)}")
    for result in results:
        if result.verdict not in ("valid", "cut"):
            print(f"  {result.verdict} {result.name}: {result.detail[:300]}")
    return 1 if any(counts[verdict] for verdict in WRONG) else 0


if __name__ == "__main__":
    main()
