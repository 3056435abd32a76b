"""Writes docs/benchmarks.md from results of `lmprog bench` and what scripts printed. No number there is typed by hand.

python scripts/benchmarks_doc.py docs/benchmarks/*

A .txt file is a section of its own: its name is the title, its first line the command, the rest what that printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmprog_runtime.bench.report import tables
from lmprog_runtime.bench.results import Results

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

This page is made by `scripts/benchmarks_doc.py` from the JSON that `lmprog bench` wrote
(`docs/benchmarks/`); under each table stands what it ran on. Ratios are of medians over interleaved
rounds: every setting and every side runs once in each round, another one first each time. `lmprog bench
report docs/benchmarks/*.jsonl` makes pictures of them. Tables of one round, or of a small scale, are
indicative. *Of the floor* is the time that memory and arithmetic of the machine, as measured in the same run, need at
least for a step, over the time that the step took; int8 and int4 are held against bfloat16's rate of arithmetic, so
where arithmetic bounds them they can pass 100 %. *Others used* is the share of the cores that other processes took.
HellaSwag's items are the first 500 of its validation split."""

USE = """## Measure it yourself

| command | what it measures |
|---|---|
| `lmprog bench serving` | throughput and latencies, as SGLang's bench_serving prints and names them |
| `lmprog bench peers` | seven workloads against transformers; `--peer NAME=URL`: and servers with OpenAI's API; \
`--llama-cpp FILE.gguf`: and llama.cpp, with weights of as many bits |
| `python scripts/bench_llama_cpp.py` | steps beside llama.cpp's at the same number of bits; about five minutes |
| `lmprog bench programs` | thirteen programs with and without prefix cache, forks and jump-forward |
| `lmprog bench report FILES` | pictures (PNG, SVG) and one HTML page from what the others wrote with `--output-file` |

`serving` runs a model in its own process, or sends to `--base-url` with `--backend lmprog`, `openai`, `openai-chat` or
`sglang` (vLLM is `openai`; keys come from LMPROG_API_KEY). Data: `--dataset-name` random, sharegpt, custom (JSON Lines
of `prompt` and `output_len`), generated-shared-prefix (`--gsp-zipf` makes some groups frequent), multi-turn, or
shared-prefix (a JSON file with `system`, `tools`, `examples` and `questions`). Load: `--request-rate` (Poisson) or
`--max-concurrency`. What stands after `--compare` are settings to run in turn, each in quotes:

    lmprog bench serving --dataset-name generated-shared-prefix --gsp-num-groups 4 --gsp-prompts-per-group 4 \\
        --scale 0.1 --rounds 2 --compare "" "--disable-radix-cache"

These are 16 requests, four times, in less than a minute. Without the two `--gsp` flags it is SGLang's default of 1,024
requests, which at scale 1 takes hours on 2 cores.

`programs` makes its items from a seed, or reads them: `--data gsm8k=FILE`, and likewise mmlu, hellaswag and documents.
"""

NOTES = {
    "Peers": """All sides have the same prompts (in token ids, fresh in each round) and lengths of answers; transformers
also has the same weights, threads and dtype (bfloat16 where lmprog has int8 or int4). In brackets: how many times as
long as lmprog it takes. transformers runs batches of 16 of equal lengths, so that nothing is padded: plain, and
with the KV of the shared beginning (or of the conversation) kept by hand, where that is natural. It has
no constraints: for JSON it generates freely, as many tokens as the longest answer of its batch has
here. lmprog starts from an empty prefix cache in each round; grammars and their masks are warm, from an
untimed run that finds the lengths of answers. llama.cpp, where there is a column of it, runs in the
same process through its batch API, with weights of as many bits, a shared beginning computed once for all
sequences, and fused attention; it guesses nothing and has no constraint here. A server that takes no token
ids gets the prompts as text, and its column says so.

The prompts are random tokens, and a small model that decodes greedily after those soon repeats itself. lmprog guesses
at such repeated text and verifies several tokens in one step (`speculation`), so much of its speed where one request
runs alone ("one stream") is guesses that came true: most of the 128 tokens. Prose repeats itself less. *lmprog
without guesses* has `speculation` off and is what to compare for such text; where the table has no such column, it was
measured before that side was added.

Shapes at scale 1: few-shot, 64 requests of 1,000 shared and 40 own tokens, 16 out; choices, 32
questions on a shared prefix of 500 tokens with 4 choices of 6; chat, 8 conversations of 4 turns of 100
tokens, 32 out; fork, 16 branches on 800 tokens, 64 out; JSON extraction, 32 documents of 150 tokens on
an instruction of 300, up to 96 out; one stream, 128 in and out; batch of 16, 128 in and out, nothing
shared. The scale multiplies shared lengths and numbers of requests; one stream and batch of 16 stay as they are.""",
    "Programs": """Runs start from an empty cache. Brackets say how many times as fast the programs are with
everything on. Without forks, branches run one after the other. The best possible hit rate computes every distinct edge
of the tree of all requests once, in a pool without end. Free text has fixed lengths, the
same in all settings. Tokens computed include drafts of speculation that were not accepted.""",
    "Serving": """Names and meanings are those of SGLang's bench_serving. A cold cache was emptied after
the warm-up.""",
}

SERVING = (
    "lmprog bench serving --dataset-name generated-shared-prefix --scale 0.25 --gsp-num-groups 2 "
    "--gsp-prompts-per-group 8 --output-file docs/benchmarks/serving.jsonl --compare "
    + " ".join(f'"--max-concurrency {n}" "--max-concurrency {n} --disable-radix-cache"' for n in (1, 8))
)


def commands(title: str, results: Results) -> str:
    """How the table was made, and how to make it at full size; times are those of 2 cores."""
    if title == "Serving":
        return f"Made by (about two minutes):\n\n    {SERVING}\n"
    if title == "Peers":
        name, last, flag, full, time = "peers", results.peers[-1], "scale", "1", "three quarters of an hour"
    else:
        name, last, flag, full, time = "programs", results.programs[-1], "count", "16", "a quarter of an hour"
    more = _peer_flags(last) if name == "peers" else ""
    made, out = f"lmprog bench {name}{more} --{flag}", f"--output-file docs/benchmarks/{name}.jsonl"
    here = f"{made} {last[flag]} --rounds {last['rounds']} {out}"
    return (
        f"Made by the first command; the second one is the full size and takes about {time}:\n\n"
        f"    {here}\n    {made} {full} --rounds 3 {out}\n"
    )


def _peer_flags(result: dict[str, Any]) -> str:
    names = {name for sides in result["seconds"].values() for name in sides}
    beside = " --llama-cpp FILE.gguf" if any(name.startswith("llama.cpp ") for name in names) else ""
    return f" --dtype {result['model']['dtype']}{beside}"


def document(results: Results, printed: list[Path]) -> Iterator[str]:
    yield f"{HEAD}\n"
    for title, head, rows, note in tables(results):
        yield f"## {title}\n\n{NOTES[title]}\n"
        yield "\n".join([_line(head), "|---" + "|---:" * (len(head) - 1) + "|", *map(_line, rows)])
        yield f"\n{note}\n\n{commands(title, results)}"
    for path in printed:
        yield f"## {path.stem.replace('_', ' ')}\n\n```\n{path.read_text(encoding='utf-8').strip()}\n```\n"
    yield USE


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    measured = [path for path in options.results if path.suffix == ".jsonl"]
    printed = [path for path in options.results if path.suffix == ".txt"]
    options.output.write_text("\n".join(document(Results.read(measured), printed)), encoding="utf-8")


if __name__ == "__main__":
    main()
