"""lm-evaluation-harness on HellaSwag: its `lmprog` model beside its own `hf` model, in one run, on the same requests.

    python scripts/bench_lm_eval.py DATA.jsonl [--items 500] [--shots 0 10] [--batch-sizes 1 2 4 8 16] [--same-shots]

DATA: items with ctx, endings and label. Both models run float32 on the same threads. The batch size of `hf` is the one
that is fastest on the first items. Times are those of `loglikelihood`, tokenizing included, from an empty cache. Prints
seconds, their ratio, the largest difference of a log-probability, differing is_greedy, and both accuracies.
lm-eval draws other examples for each item; with --same-shots all items have the first ones.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from lmprog_runtime.harness.lm_eval_model import LmprogModel

METRICS = ("acc", "acc_norm")
TASKS = TaskManager(include_defaults=False)  # lm-eval reads the files of all its tasks otherwise, each time


class Timed:
    """Measures a model's `loglikelihood`."""

    def __init__(self, model: Any) -> None:
        self.model, self.seconds = model, 0.0
        self._call = model.loglikelihood
        model.loglikelihood = self

    def __call__(self, requests: Any, **options: Any) -> Any:
        start = time.perf_counter()
        answers = self._call(requests, **options)
        self.seconds = time.perf_counter() - start
        return answers


class Outcome(NamedTuple):
    seconds: float
    logprobs: list[float]
    greedy: list[bool]
    metrics: dict[str, float]


def task(data: str, same_shots: bool) -> dict[str, Any]:
    sampler: dict[str, Any] = {"fewshot_config": {"sampler": "first_n"}} if same_shots else {}
    return {
        "task": "hellaswag_file",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"validation": data}},
        "output_type": "multiple_choice",
        "validation_split": "validation",
        "fewshot_split": "validation",
        "doc_to_text": "{{ctx}}",
        "doc_to_target": "{{label}}",
        "doc_to_choice": "{{endings}}",
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in METRICS],
        **sampler,
    }


def run(timed: Timed, settings: dict[str, Any], shots: int, items: int) -> Outcome:
    found = simple_evaluate(
        model=timed.model,
        tasks=[dict(settings)],
        num_fewshot=shots,
        limit=items,
        task_manager=TASKS,
        bootstrap_iters=0,
        log_samples=True,
    )
    samples = sorted(found["samples"]["hellaswag_file"], key=lambda sample: sample["doc_id"])
    answers = [answer for sample in samples for answer in sample["filtered_resps"]]
    numbers = found["results"]["hellaswag_file"]
    metrics = {name: numbers[f"{name},none"] for name in METRICS}
    return Outcome(timed.seconds, [float(a[0]) for a in answers], [str(a[1]) == "True" for a in answers], metrics)


def best_batch_size(timed: Timed, settings: dict[str, Any], shots: int, sizes: Sequence[int]) -> int:
    def seconds(size: int) -> float:
        timed.model.batch_size_per_gpu = size
        return run(timed, settings, shots, items=max(2, max(sizes) // 4)).seconds

    seconds(sizes[0])  # the first run of a process also allocates
    return min(sizes, key=seconds)


def compare(ours: Timed, theirs: Timed, options: argparse.Namespace, shots: int) -> None:
    settings = task(options.data, options.same_shots)
    size = best_batch_size(theirs, settings, shots, options.batch_sizes)
    theirs.model.batch_size_per_gpu = size
    ours.model.runtime.flush_cache()
    mine, other = (run(each, settings, shots, options.items) for each in (ours, theirs))
    difference = max(abs(a - b) for a, b in zip(mine.logprobs, other.logprobs, strict=True))
    greedy = sum(a != b for a, b in zip(mine.greedy, other.greedy, strict=True))
    print(
        f"{shots}-shot, {options.items} items: lmprog {mine.seconds:.1f} s, hf {other.seconds:.1f} s "
        f"at batch size {size}, {other.seconds / mine.seconds:.2f}x; "
        f"max |d| {difference:.1e}, is_greedy differs {greedy} times"
    )
    for name in METRICS:
        print(f"    {name}: lmprog {mine.metrics[name]:.4f}, hf {other.metrics[name]:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--shots", type=int, nargs="+", default=[0, 10])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--same-shots", action="store_true", help="the same examples before all items")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    threads = os.cpu_count() or 1
    torch.set_num_threads(threads)
    ours = Timed(LmprogModel(pretrained=options.model, threads=threads))
    if not ours.model.runtime.files.has_safetensors:
        raise SystemExit("lm-eval's hf model needs safetensors; give --model a model that has them.")
    directory = str(ours.model.runtime.files.directory)
    theirs = Timed(HFLM(pretrained=directory, dtype="float32", batch_size=1, device="cpu"))
    packages = ", ".join(f"{name} {version(name)}" for name in ("lm_eval", "torch", "transformers"))
    print(f"{options.model}, float32, {threads} threads, {platform.machine()}, {packages}, cold cache", flush=True)
    for shots in options.shots:
        compare(ours, theirs, options, shots)
    ours.model.runtime.close()


if __name__ == "__main__":
    main()
