"""JSON Lines, wherever they are read: a line ends at a line feed and nowhere else."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmprog import InvalidArgument, ScriptedBackend, run_command
from lmprog.bench.data import read_items
from lmprog.evaluation.data import load_items
from lmprog.json_lines import read_objects
from lmprog_runtime.bench.dataset_files import custom
from lmprog_runtime.bench.json_lines import read_values
from lmprog_runtime.bench.results import Results
from lmprog_runtime.errors import RequestRefused
from tests.support.byte_tokenizer import make_byte_tokenizer

SEPARATORS = ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r")
TEXT = "".join(f"a{separator}b" for separator in SEPARATORS)


def custom_texts(path: Path) -> list[str]:
    tokenizer = make_byte_tokenizer()
    return [tokenizer.decode_bytes(c.turns[0].token_ids).decode() for c in custom(path, tokenizer, 99, output_len=1)]


def quality_texts(path: Path) -> list[str]:
    scripts = Path(__file__).parents[2] / "scripts"
    with mock.patch.object(sys, "path", [str(scripts), *sys.path]):  # as when Python runs a script
        script = runpy.run_path(str(scripts / "quality.py"))
    text: str = script["read_text"](path)
    return text.split("\n\n")


READERS: dict[str, Callable[[Path], list[str]]] = {
    "one for all": lambda path: [item["text"] for _, item in read_objects(path)],
    "the runtime's": lambda path: [item["text"] for _, item in read_values(path)],
    "eval": lambda path: [item.data["text"] for item in load_items(path)],
    "bench programs": lambda path: [item["text"] for item in read_items("documents", path)],
    "bench serving": custom_texts,
    "quality": quality_texts,
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    return path


@pytest.mark.parametrize("reader", READERS)
def test_texts_may_hold_every_separator(tmp_path: Path, reader: str) -> None:
    texts = [TEXT, *SEPARATORS]
    key = "prompt" if reader == "bench serving" else "text"
    rows = [{key: text} for text in texts]
    assert READERS[reader](write(tmp_path / "a.jsonl", rows)) == texts


def test_results_of_benchmarks_may_hold_them(tmp_path: Path) -> None:
    rows = [{"kind": "serving", "generated_texts": [TEXT]}, {"kind": "peers", "tag": TEXT}]
    found = Results.read([write(tmp_path / "a.jsonl", rows)])
    assert (found.serving, found.peers) == (rows[:1], rows[1:])


def test_arguments_of_a_batch_may_hold_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run_items(program: Any, items: list[Any], backend: Any, options: argparse.Namespace) -> int:
        seen.extend(items)
        return 0

    monkeypatch.setattr(run_command, "_run_items", run_items)
    monkeypatch.setattr(run_command, "backend_of", lambda _: ScriptedBackend())
    (tmp_path / "p.py").write_text("from lmprog import function\n@function\ndef p(s, text): ...\n")
    source = write(tmp_path / "in.jsonl", [{"text": TEXT}])
    run_command.main([str(tmp_path / "p.py"), "--input", str(source), "--output", str(tmp_path / "out")])
    assert seen == [{"text": TEXT}]


@given(st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8)), max_size=4))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "written.jsonl"
    path.write_bytes("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode("utf-8", "surrogatepass"))
    assert list(read_objects(path)) == [(2 * at + 1, row) for at, row in enumerate(rows)] == list(read_values(path))


@pytest.mark.parametrize(
    ("line", "words"),
    [("[1]", "line 3 is not an object"), ('{"a"', "line 3 is not JSON")],
)
def test_mistakes_name_their_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": "x\u2028y"}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(InvalidArgument, match=words):
        list(read_objects(path))
    if "JSON" in words:
        with pytest.raises(RequestRefused, match=words):
            list(read_values(path))
