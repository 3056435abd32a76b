"""`lmprog eval TASK`: a few-shot benchmark, with a table at the end, a result file and a record per item.

TASK is FILE.py:NAME of a task object (see lmprog.evaluation), or FILE.py with only one, or a format that comes with
lmprog, with --data.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lmprog.backends.base import Backend
from lmprog.command_options import backend_of, named_in_file
from lmprog.errors import InvalidArgument
from lmprog.evaluation import Evaluation, Task, evaluate
from lmprog.evaluation.formats import FORMATS
from lmprog.evaluation.task import STYLES, Asking


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when every item was scored, 1 when some failed."""
    options = _parser().parse_args(arguments)
    task = load_task(options.task, options.data, options.shots_data)
    output = Path(options.output) if options.output else None
    backend = backend_of(options)
    try:
        result = evaluate(
            task,
            backend=backend,
            shots=options.shots,
            limit=options.limit,
            asking=Asking(options.style, options.samples, options.temperature, options.seed),
            shot_seed=options.shot_seed,
            too_long=options.too_long,
            records=output / f"{task.name}.records.jsonl" if output else None,
            settings=_settings(backend, options),
            num_threads=options.num_threads,
            progress_bar=not options.quiet,
        )
    finally:
        backend.close()
    _report(result, output)
    return 1 if result.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmprog eval", description=__doc__)
    parser.add_argument("task", help=f"FILE.py:NAME, or one of {', '.join(FORMATS)}")
    parser.add_argument(
        "--data", help="file (.jsonl, .json, .csv), saved dataset folder, or hf:owner/name:config:split"
    )
    parser.add_argument("--shots", type=int, default=0, help="examples before each question")
    parser.add_argument("--shots-data", help="where examples come from; default: the data itself")
    parser.add_argument("--shot-seed", type=int, default=0, help="draws other examples")
    parser.add_argument("--limit", type=int, help="only the first items")
    parser.add_argument("--style", choices=STYLES, default="plain", help="text, a chat turn, or examples as turns")
    parser.add_argument("--samples", type=int, default=1, help="generated answers per item")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, help="of the samples")
    parser.add_argument("--too-long", choices=("error", "drop-shots"), default="error", help="prompts that do not fit")
    parser.add_argument("--output", metavar="FOLDER", help="result and records; a second call goes on where one ended")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--num-threads", type=int, default=64, help="items under way at a time")
    _add_model_options(parser)
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m", help="alias, path or id; with --api its name there")
    parser.add_argument("--dtype", help="of the model here; default: auto")
    parser.add_argument("--threads", type=int, help="CPU threads of the model here; default: the number of cores")
    parser.add_argument("--disable-radix-cache", action="store_true", default=None, help="reuse no prefix")
    elsewhere = parser.add_mutually_exclusive_group()
    elsewhere.add_argument(
        "--url", help="a running lmprog server, such as http://127.0.0.1:30000 (key: LMPROG_API_KEY)"
    )
    elsewhere.add_argument(
        "--api", metavar="URL", help="any chat API like OpenAI's (key: OPENAI_API_KEY); generation only"
    )


def load_task(spec: str, data: str | None, shots_data: str | None) -> Task:
    """A task by the name of its format or by file and name. InvalidArgument for what is not there."""
    if spec in FORMATS:
        if data is None:
            raise InvalidArgument(f"{spec} is a format; say where the items are: lmprog eval {spec} --data FILE.jsonl")
        return FORMATS[spec](data, shots_data)
    if ":" not in spec and not Path(spec).is_file():
        raise InvalidArgument(
            f"{spec!r} is neither FILE.py:NAME of a file that is there nor one of {', '.join(FORMATS)}."
        )
    task: Task = named_in_file(spec, Task, "task")
    given = {key: value for key, value in {"data": data, "shots_data": shots_data}.items() if value is not None}
    return replace(task, **given)


def _settings(backend: Backend, options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers were measured with. Records of other settings are not gone on with."""
    is_local = not options.url and not options.api
    info = {key: value for key, value in backend.server_info().items() if isinstance(value, str | int | float)}
    return {
        "model": options.model if is_local or options.api else info.get("model", ""),
        "revision": info.get("revision", ""),
        "dtype": info.get("dtype", ""),
        "executor": info.get("executor", ""),
        "threads": (options.threads or os.cpu_count()) if is_local else None,
        "cache_at_start": "cold" if is_local else "unknown",
        "radix_cache": not options.disable_radix_cache if is_local else None,
        "too_long": options.too_long,
        "machine": platform.machine(),
        "lmprog": _version(),
    }


def _version() -> str:
    try:
        return version("lmprog")
    except PackageNotFoundError:  # runs from a source folder
        return "source"


def _report(result: Evaluation, output: Path | None) -> None:
    print("\n".join(table(result)))
    for index, text in sorted(result.failed.items()):
        print(f"item {index}: {text}", file=sys.stderr)
    if output is not None:
        path = output / f"{result.task}.json"
        path.write_text(json.dumps(result.as_data(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
        print(f"Result in {path}, one record per item in {result.task}.records.jsonl beside it.")


def table(result: Evaluation) -> Sequence[str]:
    """The result as lines: what ran, the metrics, what it cost."""
    lines = [_headline(result), f"{'metric':<16}{'value':>9}{'stderr':>10}"]
    for name, value in result.metrics.items():
        error = "-" if value.stderr is None else f"±{value.stderr:.4f}"
        lines.append(f"{name:<16}{value.value:>9.4f}{error:>10}")
    lines.append(_cost(result))
    if result.fewer_shots:
        lines.append(f"{result.fewer_shots} items were too long for all examples and have fewer.")
    if result.failed:
        lines.append(f"{len(result.failed)} items failed and are not in the numbers above.")
    return lines


def _headline(result: Evaluation) -> str:
    noted = result.settings
    model = f"{noted.get('model', '')} ({noted.get('dtype')}, {noted.get('executor')}, {noted.get('threads')} threads)"
    return f"{result.task} on {model}: {len(result.records)} items, {noted['shots']} shots, {noted['style']}"


def _cost(result: Evaluation) -> str:
    usage, new = result.usage, len(result.records) - result.resumed
    if not new and not result.failed:
        return f"All {result.resumed} items were there from before; nothing was run."
    share = usage.cached_tokens / usage.prompt_tokens if usage.prompt_tokens else 0.0
    tokens = f"{usage.prompt_tokens:,} prompt tokens, {share:.1%} from the cache"
    start = result.settings.get("cache_at_start", "unknown")
    text = (
        f"{new} items in {result.seconds:.1f} s; {tokens} ({start} at the start), {usage.completion_tokens:,} generated"
    )
    return text + (f"; {result.resumed} items were there from before" if result.resumed else "")
