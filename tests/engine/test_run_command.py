"""`lmprog run` as a process on a model here: what one call keeps in --cache-dir, the next does not compute again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_engine import TINY_VOCAB
from tests.support.tiny_models import save_whole_model

ROOT = Path(__file__).parents[2]
PROGRAM = """
from lmprog import function, gen

@function
def tell(s, ending):
    s += 3 * "a prefix that is as long as it needs to be, and " + ending + gen("x", max_tokens=3, temperature=0)
"""


def _run(folder: Path, ending: str) -> tuple[int, int]:
    """How many prompt tokens a call says it had, and how many of them cached."""
    code = "import sys; from lmprog.cli import main; sys.exit(main(sys.argv[1:]))"
    flags = ["--model", str(folder / "model"), "--dtype", "float32", "--cache-dir", str(folder / "cache")]
    command = [sys.executable, "-c", code, "run", str(folder / "program.py"), "--arg", f"ending={ending}", *flags]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=200)
    told = re.search(r"^(\d+) prompt tokens, (\d+) of them cached$", done.stderr.decode(), re.MULTILINE)
    assert done.returncode == 0, done.stderr
    assert told is not None
    return int(told[1]), int(told[2])


def test_the_next_process_has_what_the_last_one_kept(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    save_whole_model(tmp_path / "model", vocab_size=TINY_VOCAB)
    (tmp_path / "program.py").write_text(PROGRAM)
    count, cached = _run(tmp_path, "one")
    assert cached == 0
    assert 128 < count < 192
    assert _run(tmp_path, "another")[1] == 128, "two blocks of 64 tokens"
