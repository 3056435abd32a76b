"""Perplexity of a text under each dtype of the CPU executor, and how far each is from float32.

python scripts/quality.py TEXT [--model NAME] [--dtypes float32,bfloat16,int8,int4] [--tokens 20000]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.tokenizer import load_tokenizer
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.step import AttentionPlan, StepBatch

WINDOW = 512  # tokens scored at a time, each window on its own


class Quality(NamedTuple):
    perplexity: float
    divergence: float  # mean Kullback-Leibler divergence from float32, nats
    agreement: float  # share of positions with the same likeliest token as float32


def main() -> None:
    arguments = parse()
    files = resolve_model(arguments.model)
    tokens = load_tokenizer(files).encode(Path(arguments.text).read_text(errors="replace"))[: arguments.tokens]
    windows = [tokens[start : start + WINDOW] for start in range(0, len(tokens) - WINDOW + 1, WINDOW)]
    reference = load(files.directory, "float32")
    print(f"{files.name}: {len(windows) * WINDOW} tokens in windows of {WINDOW}")
    for dtype in arguments.dtypes:
        result = compare(load(files.directory, dtype), reference, windows)
        print(f"{dtype:9} perplexity {result.perplexity:8.4f}  divergence {result.divergence:.5f}"
              f"  same top token {result.agreement:.1%}")  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--tokens", type=int, default=20_000)
    return parser.parse_args()


def load(directory: Path, dtype: str) -> CpuExecutor:
    spec = read_spec(directory)
    return CpuExecutor(spec, open_weights(directory, spec), num_slots=WINDOW, dtype=dtype)


def compare(executor: CpuExecutor, reference: CpuExecutor, windows: list[list[int]]) -> Quality:
    loss, divergence, same, count = 0.0, 0.0, 0, 0
    for window in windows:
        own, true = (log_probabilities(each, window) for each in (executor, reference))
        loss -= own[:-1].gather(1, torch.tensor(window[1:]).unsqueeze(1)).sum().item()
        divergence += (true.exp() * (true - own)).sum().item() / len(window)
        same += int((own.argmax(-1) == true.argmax(-1)).sum())
        count += len(window) - 1
    return Quality(math.exp(loss / count), divergence / len(windows), same / (len(windows) * WINDOW))


def log_probabilities(executor: CpuExecutor, window: list[int]) -> Tensor:
    rows = np.arange(len(window), dtype=np.int32)
    plan = AttentionPlan(rows, np.array([(0, len(window), 0, len(window), 0, 0)], np.int32))
    return executor.step(StepBatch(np.array(window, np.int32), rows, rows, rows, plan)).log_softmax(-1)


if __name__ == "__main__":
    main()
