"""The files of one model on this machine, in Hugging Face layout, and what every part reads from them.

Nothing here touches the network, imports torch or runs code that came with a model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmprog_runtime.errors import ModelNotFound, ModelUnsupported

_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that is complete on this machine."""

    name: str  # as it was asked for
    directory: Path  # config.json, tokenizer files, safetensors weights unless they are in a GGUF file
    revision: str  # hexadecimal; changes when the content does, so that caches of two versions never mix
    context_length: int  # tokens, as the config says
    chat_template: str | None  # Jinja source; None for a model that knows no chat
    gguf: Path | None  # the file that the directory was made from, if it was
    is_quantised: bool = False  # that file is what the user asked for, and has quantised matrices

    @property
    def has_safetensors(self) -> bool:
        """Otherwise the weights are in `gguf`, and nowhere else."""
        return any(self.directory.glob("*.safetensors"))

    @property
    def weight_bytes(self) -> int:
        """Of the files that hold the weights."""
        if self.gguf is not None and not self.has_safetensors:
            return self.gguf.stat().st_size
        return sum(path.stat().st_size for path in self.directory.glob("*.safetensors"))


def open_directory(
    directory: Path,
    *,
    name: str,
    revision: str | None = None,
    gguf: Path | None = None,
    is_quantised: bool = False,
) -> ModelFiles:
    """Check that a model is complete. `revision` defaults to a fingerprint of the files, `gguf` may hold the weights.

    Raises ModelNotFound that names the missing file, or ModelUnsupported when there are only pickled weights.
    """
    _check_complete(directory)
    if gguf is None:
        _check_weights(directory)
    return ModelFiles(
        name=name,
        directory=directory,
        revision=revision or _fingerprint(directory),
        context_length=_context_length(directory),
        chat_template=_chat_template(directory),
        gguf=gguf,
        is_quantised=is_quantised,
    )


def has_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file. ModelUnsupported when it cannot be read."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelUnsupported(f"{path} is not valid JSON ({error}); fetch the model again.") from error
    if not isinstance(content, dict):
        raise ModelUnsupported(f"{path} holds no JSON object; fetch the model again.")
    return content


def _check_complete(directory: Path) -> None:
    if not has_model(directory):
        raise ModelNotFound(f"{directory} has no config.json, so it is not a model in Hugging Face layout.")
    if not any((directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelNotFound(f"{directory} has no tokenizer; looked for {', '.join(_TOKENIZER_FILES)}.")


def _check_weights(directory: Path) -> None:
    listed = read_json(directory / "model.safetensors.index.json").get("weight_map", {})
    missing = sorted({name for name in listed.values() if not (directory / name).is_file()})
    if missing:
        raise ModelNotFound(f"{directory} lacks {len(missing)} of its weight files, the first is {missing[0]}.")
    if any(directory.glob("*.safetensors")):
        return
    if any(directory.glob("*.bin")) or any(directory.glob("*.pth")):
        raise ModelUnsupported(
            f"{directory} has only pickled weights, which can run code when read; save it again as safetensors."
        )
    raise ModelNotFound(f"{directory} has no weights; looked for *.safetensors.")


def _context_length(directory: Path) -> int:
    config = read_json(directory / "config.json")
    for field in _CONTEXT_FIELDS:
        if isinstance(config.get(field), int):
            return int(config[field])
    raise ModelUnsupported(
        f"{directory / 'config.json'} says no context length; looked for {', '.join(_CONTEXT_FIELDS)}."
    )


def _chat_template(directory: Path) -> str | None:
    """chat_template.jinja, else the field of tokenizer_config.json, where a list of named ones has a "default"."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    found = read_json(directory / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found


def _fingerprint(directory: Path) -> str:
    """Of the content of small files, and of the size and time of weights, which would take seconds to read."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in (".json", ".jinja", ".model", ".txt"):
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        elif path.suffix == ".safetensors":
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()
