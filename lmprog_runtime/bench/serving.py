"""`lmprog bench serving`: throughput and latencies of a server, or of a runtime in this process.

The printed lines and the names in the JSON are those of SGLang's bench_serving, so that results compare line by line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lmprog_runtime.bench.compare import Setting, compare, print_comparison
from lmprog_runtime.bench.conversation import Conversation
from lmprog_runtime.bench.environment import environment
from lmprog_runtime.bench.load import run_load
from lmprog_runtime.bench.metrics import serving_metrics
from lmprog_runtime.bench.outcome import Outcome
from lmprog_runtime.bench.printing import result_lines
from lmprog_runtime.bench.results import describe
from lmprog_runtime.bench.runtime_flags import runtime_config
from lmprog_runtime.bench.serving_flags import conversations_of, load_of, parser, server_of, split_compare, target_key
from lmprog_runtime.bench.targets import InProcess, Target
from lmprog_runtime.errors import RequestRefused, RuntimeFault
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.tokenizer import Tokenizer, load_tokenizer
from lmprog_runtime.runtime import LocalRuntime

Result = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when all requests went well, 1 when some failed."""
    common, settings = split_compare(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(common)
    if settings:
        return _compare(options, [Setting.parse(text, common, parser()) for text in settings])
    with opened(options) as (target, tokenizer):
        result = measure(options, target, tokenizer)
    print("\n".join([*result_lines(result), describe(result)]))
    write(options, [result])
    return 1 if result["failed"] else 0


@contextlib.contextmanager
def opened(options: argparse.Namespace) -> Iterator[tuple[Target, Tokenizer]]:
    """The target that the flags describe. A runtime in this process ends with the block."""
    if options.base_url:
        tokenizer = load_tokenizer(resolve_model(options.model))
        yield server_of(options, tokenizer), tokenizer
        return
    if options.backend not in (None, "in-process"):
        raise RequestRefused(f"--backend {options.backend} needs --base-url.")
    runtime = LocalRuntime.from_config(runtime_config(options))
    try:
        yield InProcess(runtime, ignore_eos=not options.disable_ignore_eos), runtime.tokenizer
    finally:
        runtime.close()


def measure(options: argparse.Namespace, target: Target, tokenizer: Tokenizer) -> Result:
    """Warm up, empty the cache when that is wanted, send everything."""
    conversations = conversations_of(options, tokenizer)
    warm_up(target, conversations[: options.warmup_requests])
    state = _cache_state(options, target)
    outcomes, duration = run_load(
        target, conversations, load_of(options), encode=tokenizer.encode, quiet=options.disable_tqdm
    )
    result = {**_settings(options, target), "cache_state": state, **serving_metrics(outcomes, duration)}
    result["peak_memory_mb"] = target.peak_memory_mb()
    _report_errors(outcomes)
    return {**result, **_details(outcomes)} if options.output_details else result


def warm_up(target: Target, conversations: list[Conversation]) -> None:
    """RequestRefused with the target's error when it cannot serve at all."""
    for conversation in conversations:
        turn = conversation.turns[0]
        outcome = target.send(turn.token_ids, min(32, turn.output_len))
        if outcome.error:
            raise RequestRefused(f"The warm-up request failed, so nothing was measured: {outcome.error}")


def _cache_state(options: argparse.Namespace, target: Target) -> str:
    if not options.flush_cache:
        return "warm"
    return "cold" if target.flush_cache() else "unknown"


def _settings(options: argparse.Namespace, target: Target) -> Result:
    names = ("tag", "dataset_name", "seed", "scale", "num_prompts", "disable_radix_cache")
    return {
        **{name: getattr(options, name) for name in names},
        "kind": "serving",
        "backend": target.name,
        "model": options.model,
        "request_rate": options.request_rate if options.request_rate != float("inf") else "inf",
        "max_concurrency": options.max_concurrency or "not set",
        "target": target.info(),
        "threads": None if options.base_url else options.threads or os.cpu_count(),  # of a server, nobody says
        "environment": environment(),
    }


def _details(outcomes: list[Outcome]) -> Result:
    return {
        "input_lens": [o.prompt_len for o in outcomes],
        "output_lens": [o.output_len for o in outcomes],
        "ttfts": [o.ttft for o in outcomes],
        "itls": [o.itl for o in outcomes],
        "latencies": [o.latency for o in outcomes],
        "cached_tokens": [o.cached_tokens for o in outcomes],
        "generated_texts": [o.text for o in outcomes],
        "errors": [o.error for o in outcomes],
    }


def _report_errors(outcomes: list[Outcome]) -> None:
    errors = [o.error for o in outcomes if o.error]
    if errors:
        print(f"{len(errors)} requests failed; the first one: {errors[0]}", file=sys.stderr)


def write(options: argparse.Namespace, results: list[Result]) -> None:
    if options.output_file:
        append_lines(options.output_file, results)


def append_lines(path: Path, results: list[Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(result) + "\n" for result in results)


def _compare(options: argparse.Namespace, settings: list[Setting]) -> int:
    """Run the settings in turn, round by round; the flags of a setting come on top of the common ones."""
    with contextlib.ExitStack() as stack:
        targets: dict[Hashable, tuple[Target, Tokenizer]] = {}  # settings that differ in their load share one
        measures = []
        for label, given in settings:
            if target_key(given) not in targets:
                targets[target_key(given)] = stack.enter_context(opened(given))
            measures.append((label, partial(measure, given, *targets[target_key(given)])))
        runs = compare(measures, options.rounds)
    print_comparison(runs)
    print(describe(next(iter(runs.values()))[0]))
    results = [result | {"setting": label} for label, some in runs.items() for result in some]
    write(options, results)
    return 1 if any(result["failed"] for result in results) else 0


def script() -> int:
    """`main` for `python -m`: a mistake is one sentence and status 1."""
    try:
        return main()
    except (RuntimeFault, OSError) as error:
        print(f"lmprog: {error}", file=sys.stderr)
        return 1
