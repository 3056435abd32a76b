"""Data sets from files of the user: ShareGPT's format, JSON Lines, and workloads with a shared prefix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lmprog_runtime.bench.conversation import Conversation
from lmprog_runtime.bench.datasets import TokenSource
from lmprog_runtime.bench.json_lines import read_values
from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.model.tokenizer import Tokenizer


def sharegpt(
    path: Path, tokenizer: Tokenizer, source: TokenSource, count: int, *, output_len: int | None, context_len: int
) -> list[Conversation]:
    """First question and length of first answer of `count` conversations, drawn by the seed.

    The file is a JSON list of {"conversations": [{"value": ...}, ...]}. Those with fewer than two turns are left out,
    and so are those of under 4 tokens on a side or over `context_len` tokens together.
    """
    entries = [entry.get("conversations", entry.get("conversation", [])) for entry in _json_list(path)]
    pairs = [(turns[0]["value"], turns[1]["value"]) for turns in entries if len(turns) >= 2]
    found: list[Conversation] = []
    for index in source.generator.permutation(len(pairs)):
        ids, answer = (tokenizer.encode(text) for text in pairs[int(index)])
        wanted = output_len or len(answer)
        if min(len(ids), wanted) >= 4 and len(ids) + wanted <= context_len:
            found.append(Conversation.single(ids, wanted))
        if len(found) == count:
            break
    return _some(found, path)


def custom(path: Path, tokenizer: Tokenizer, count: int, *, output_len: int | None) -> list[Conversation]:
    """The first `count` lines of a JSON Lines file: {"prompt": text or token ids, "output_len": tokens}.

    output_len: for the lines that do not say; 256 when it is None.
    """
    found: list[Conversation] = []
    for number, entry in islice(read_values(path), count):
        prompt, wanted = _custom_entry(path, number, entry)
        ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        found.append(Conversation.single(ids, wanted or output_len or 256))
    return _some(found, path)


def _custom_entry(path: Path, number: int, entry: Any) -> tuple[Any, int | None]:
    if not isinstance(entry, dict) or "prompt" not in entry:
        raise RequestRefused(f'{path}, line {number} is no {{"prompt": ..., "output_len": ...}} object.')
    return entry["prompt"], entry.get("output_len")


def shared_prefix_file(path: Path, tokenizer: Tokenizer, count: int, *, output_len: int | None) -> list[Conversation]:
    """`count` requests, the questions of a workload file taken in turn.

    The file is a JSON object: "system" (text), "tools" (list of JSON schemas), "examples" (list of {"question",
    "answer"}), "questions" (list of texts), "output_len" (tokens; 64 when nobody says). Only questions must be there.
    """
    workload = _json(path)
    if not isinstance(workload, dict) or not workload.get("questions"):
        raise RequestRefused(f'{path} is no object with a list "questions".')
    prefix, questions = "".join(_prefix_parts(workload)), workload["questions"]
    wanted = output_len or workload.get("output_len", 64)
    texts = [f"{prefix}Question: {questions[index % len(questions)]}\nAnswer:" for index in range(count)]
    return [Conversation.single(tokenizer.encode(text), wanted) for text in texts]


def _prefix_parts(workload: dict[str, Any]) -> Iterator[str]:
    if workload.get("system"):
        yield f"{workload['system']}\n\n"
    if workload.get("tools"):
        yield "Tools:\n" + "\n".join(json.dumps(tool) for tool in workload["tools"]) + "\n\n"
    for example in workload.get("examples", []):
        yield f"Question: {example['question']}\nAnswer: {example['answer']}\n\n"


def _json_list(path: Path) -> list[dict[str, Any]]:
    entries = _json(path)
    if not isinstance(entries, list):
        raise RequestRefused(f"{path} is no JSON list of conversations.")
    return entries


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RequestRefused(f"{path} is not JSON: {error}.") from error


def _some(found: list[Conversation], path: Path) -> list[Conversation]:
    if not found:
        raise RequestRefused(f"{path} has no request that can be used.")
    return found
