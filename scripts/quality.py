"""Perplexity of a text under each dtype of the CPU executor, and how far each is from transformers in float32.

    python scripts/quality.py TEXT [--model NAME] [--dtypes float32,bfloat16,int8,int4,gguf] [--tokens 20000]

TEXT is a text file, or a .jsonl file whose texts are taken one after the other. Windows of 512 tokens are scored, each
on its own. A dtype may end in "+int8kv": the same weights over a KV pool in int8. Bars: within 0.5 % of float32 in
bfloat16, 1 % in int8, and within 1 % of the same dtype in +int8kv. --llama-cpp: "gguf" within 1 % of what
llama-cpp-python finds for the same file and tokens.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from kv_variants import split_dtype
from torch import Tensor

from lmprog_runtime.bench.json_lines import read_values
from lmprog_runtime.model.executor import Executor, load_executor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.plain_batch import Part, plain_batch
from lmprog_runtime.model.tokenizer import load_tokenizer

WINDOW = 512

Scorer = Callable[[list[int]], Tensor]  # tokens of a window to log-probabilities [tokens, vocabulary]


class Quality:
    """Sums over the windows."""

    def __init__(self) -> None:
        self.loss, self.divergence, self.same, self.count = 0.0, 0.0, 0, 0

    def add(self, own: Tensor, reference: Tensor, window: list[int]) -> None:
        own, reference = own[:-1], reference[:-1]
        self.loss -= own.gather(1, torch.tensor(window[1:]).unsqueeze(1)).sum().item()
        self.divergence += (reference.exp() * (reference - own)).sum().item()
        self.same += int((own.argmax(-1) == reference.argmax(-1)).sum())
        self.count += len(own)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.count)


def main() -> None:
    arguments = parse()
    files = resolve_model(arguments.model)
    tokens = load_tokenizer(files).encode(read_text(arguments.text))[: arguments.tokens]
    windows = [tokens[start : start + WINDOW] for start in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    scorers = {"transformers": transformers_scorer(files)}
    scorers |= {dtype: executor_scorer(files, dtype) for dtype in arguments.dtypes}
    if arguments.llama_cpp:
        scorers["llama.cpp"] = llama_cpp_scorer(files)
    results = {name: Quality() for name in scorers}
    for window in windows:
        found = {name: score(window) for name, score in scorers.items()}
        for name, result in results.items():
            result.add(found[name], found["transformers"], window)
    report(files, results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--dtypes",
        type=lambda text: text.split(","),
        default=["float32", "bfloat16", "bfloat16+int8kv", "int8", "int4"],
    )
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--llama-cpp", action="store_true", help="compare with llama-cpp-python on the GGUF file")
    return parser.parse_args()


def read_text(path: Path) -> str:
    if path.suffix != ".jsonl":
        return path.read_text(encoding="utf-8")
    values = [value for _, line in read_values(path) for value in line.values()]
    return "\n\n".join(value for value in values if isinstance(value, str))


def transformers_scorer(files: ModelFiles) -> Scorer:
    from lmprog_runtime.model.hf import load_model

    model = load_model(files, torch.float32).eval()

    @torch.inference_mode()
    def score(window: list[int]) -> Tensor:
        logits: Tensor = model(torch.tensor([window])).logits[0]
        return logits.log_softmax(-1)

    return score


def executor_scorer(files: ModelFiles, dtype: str) -> Scorer:
    weights, int8_kv = split_dtype(dtype)
    kv_cache_dtype = "int8" if int8_kv else "auto"
    executor: Executor = load_executor(
        files, kind="cpu", dtype=weights, num_slots=WINDOW, kv_cache_dtype=kv_cache_dtype
    )
    slots = np.arange(WINDOW, dtype=np.int32)

    def score(window: list[int]) -> Tensor:
        return executor.step(plain_batch([Part(np.array(window, np.int32), slots)])).log_softmax(-1)

    return score


def llama_cpp_scorer(files: ModelFiles) -> Scorer:
    from llama_cpp import Llama  # type: ignore[import-not-found]

    model = Llama(str(files.gguf), n_ctx=WINDOW, n_batch=WINDOW, logits_all=True, verbose=False)

    def score(window: list[int]) -> Tensor:
        model.reset()
        model.eval(window)
        return torch.from_numpy(model.scores[: len(window)].copy()).log_softmax(-1)

    return score


def report(files: ModelFiles, results: dict[str, Quality]) -> None:
    reference = results["transformers"]
    print(f"{files.name}: {reference.count} tokens scored in windows of {WINDOW}")
    for name, result in results.items():
        share = result.perplexity / reference.perplexity - 1
        print(f"{name:16} perplexity {result.perplexity:8.4f} ({share:+.2%})"
              f"  divergence {result.divergence / result.count:.5f}"
              f"  same top token {result.same / result.count:.1%}")  # fmt: skip
    if {"llama.cpp", "gguf"} <= results.keys():
        share = results["gguf"].perplexity / results["llama.cpp"].perplexity - 1
        print(f"gguf against llama.cpp on the same file: {share:+.2%}")


if __name__ == "__main__":
    main()
