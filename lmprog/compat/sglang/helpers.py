"""What SGLang's example and benchmark programs import from its utilities."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lmprog.backends.base import Backend
from lmprog.compat.sglang.defaults import global_config
from lmprog.errors import InvalidArgument


def is_hip() -> bool:
    return False


def get_tokenizer(name: str, **_: Any) -> Any:
    """The tokenizer of the default backend: the one whose tokens the programs are made of."""
    tokenizer = getattr(global_config.default_backend, "tokenizer", None)
    if tokenizer is None:
        raise InvalidArgument(f"The default backend has no tokenizer that could be given for {name!r}.")
    return tokenizer


def read_jsonl(filename: str | Path) -> Iterator[Any]:
    """Values of the lines that are no comments (#)."""
    with Path(filename).open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                yield json.loads(line)


def dump_state_text(filename: str | Path, states: Iterable[Any], mode: str = "w") -> None:
    """The texts of states, with a line that has the number between them."""
    with Path(filename).open(mode, encoding="utf-8") as file:
        for number, state in enumerate(states):
            text = state.text() if hasattr(state, "text") else str(state)
            file.write(f"{'=' * 40} {number} {'=' * 40}\n{text}\n{'=' * 80}\n\n")


def download_and_cache_file(url: str, filename: str | None = None) -> str:
    """Fetch a file once. A download that is cut leaves nothing behind."""
    import requests

    target = Path(filename) if filename else Path(tempfile.gettempdir()) / url.rsplit("/", 1)[-1]
    if target.exists():
        return str(target)
    with requests.get(url, stream=True, timeout=60) as answer:
        answer.raise_for_status()
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
            for chunk in answer.iter_content(2**16):
                part.write(chunk)
    Path(part.name).replace(target)
    return str(target)


def print_highlight(content: Any) -> None:
    print(content)


def add_common_sglang_args_and_parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--backend", default="srt")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--result-file", default="result.jsonl")
    parser.add_argument("--raw-result-file")
    return parser.parse_args()


def select_sglang_backend(args: argparse.Namespace) -> Backend:
    """The server that --host and --port name, or OpenAI's model."""
    if args.backend.startswith("srt"):
        from lmprog.backends.native import RuntimeEndpoint

        host = args.host if "://" in args.host else f"http://{args.host}"
        return RuntimeEndpoint(f"{host}:{args.port}")
    if args.backend.startswith("gpt-"):
        from lmprog.backends.openai import OpenAI

        return OpenAI(args.backend)
    raise InvalidArgument(f"There is no backend {args.backend!r};", hint="it is srt or a gpt-... model.")
