"""`lmprog run program.py:name`: one run, or one run per line of a JSON Lines file that survives being killed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from lmprog.backends.base import Backend
from lmprog.command_options import backend_of, named_in_file
from lmprog.errors import InvalidArgument
from lmprog.json_lines import read_objects
from lmprog.program import Program


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when all runs went well, 1 when some failed."""
    options = _parser().parse_args(arguments)
    if bool(options.input) != bool(options.output):
        raise InvalidArgument("--input and --output belong together.")
    program: Program[Any, Any] = named_in_file(options.program, Program, "@function")
    items = [item for _, item in read_objects(Path(options.input))] if options.input else []
    backend = backend_of(options)
    try:
        return _run_items(program, items, backend, options) if options.input else _run_once(program, backend, options)
    finally:
        backend.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lmprog run", description=__doc__)
    parser.add_argument(
        "program",
        help="file and name of a @function, such as extract.py:extract; the only one needs no name",
    )
    parser.add_argument("--arg", action="append", default=[], metavar="NAME=VALUE", help="an argument; JSON, or text")
    parser.add_argument("--input", help="a JSON Lines file: one object of arguments per line")
    parser.add_argument("--output", help="JSON Lines, one per finished item; a second call goes on where one ended")
    parser.add_argument("--model", default="smollm2-135m", help="alias, path or id; ignored with --url")
    parser.add_argument("--dtype", help="of the model here; default: auto")
    parser.add_argument("--cache-dir", help="keep prefixes here, in blocks of 64 tokens, for the next process")
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000 (key: LMPROG_API_KEY)")
    parser.add_argument("--num-threads", type=int, help="runs under way at a time")
    return parser


def _run_once(program: Program[Any, Any], backend: Backend, options: argparse.Namespace) -> int:
    state = program.run(backend=backend, stream=True, **dict(_argument(text) for text in options.arg))
    for piece in state.text_iter():
        print(piece, end="", flush=True)
    usage = state.usage
    print(f"\n{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached", file=sys.stderr)
    return 0


def _argument(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise InvalidArgument(f"--arg {text!r} is not NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _run_items(
    program: Program[Any, Any], items: list[dict[str, Any]], backend: Backend, options: argparse.Namespace
) -> int:
    threads = options.num_threads or "auto"
    runs = program.run_batch(items, backend=backend, resume=options.output, num_threads=threads, progress_bar=True)
    failed = [(index, run.error()) for index, run in enumerate(runs) if run.error() is not None]
    for index, error in failed:
        print(f"item {index}: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"{len(runs) - len(failed)} of {len(runs)} items are in {options.output}", file=sys.stderr)
    return 1 if failed else 0
