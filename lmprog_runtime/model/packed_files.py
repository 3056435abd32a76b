"""Packed weights on disk: made when a model is first loaded in a dtype, read in a fraction of that time afterwards.

They lie in lmprog's cache, one file per model folder, dtype and instruction set. A file whose model has changed is
replaced; deleting one costs nothing but the time to make it again.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from lmprog_runtime.errors import ModelUnsupported, RuntimeFault
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.model_spec import ModelSpec
from lmprog_runtime.model.storage import cache_root, replace_file
from lmprog_runtime.model.weights import ModelWeights, open_weights
from lmprog_runtime.ops.native import (
    PackedWeights,
    StaleWeights,
    available_levels,
    load_weights,
    pack_weights,
    save_weights,
)

if TYPE_CHECKING:
    from lmprog_runtime.model.gguf_weights import GgufWeights

log = logging.getLogger("lmprog.model")

WORTH_KEEPING = 32_000_000
"""Bytes of safetensors. Smaller ones are packed as fast as they are read, in tens of milliseconds; the numbers of a
GGUF file may have to be computed first."""


def packed_weights(files: ModelFiles, spec: ModelSpec, dtype: str) -> PackedWeights:
    """The weights of a model for the CPU executor on this processor. Raises what opening them raises."""
    level = available_levels()[0]
    if files.has_safetensors and files.weight_bytes < WORTH_KEEPING:
        return pack_weights(spec, _open(files, spec, dtype), dtype, level)
    target = packed_path(files, dtype, level)
    found = _load(target, files, dtype)
    if found is not None:
        return found
    weights = _open(files, spec, dtype)
    packed: PackedWeights | None = None
    try:
        with replace_file(target) as staging:
            found = _load(target, files, dtype)  # another process may have made it while this one waited
            if found is not None:
                return found
            packed = pack_weights(spec, weights, dtype, level)
            save_weights(packed, staging, files.revision)
        packed = None  # not twice in memory
        return load_weights(target, files.revision, dtype, level)
    except (RuntimeFault, OSError) as fault:
        log.warning("the packed weights of %s are not kept, so every start packs them: %s", files.name, fault)
    return packed or pack_weights(spec, weights, dtype, level)


def packed_path(files: ModelFiles, dtype: str, level: str) -> Path:
    """Where the packed weights of a model are, or will be."""
    folder = hashlib.sha256(str(files.directory.resolve()).encode()).hexdigest()[:12]
    return cache_root() / "packed" / f"{files.directory.name[:40]}-{folder}-{dtype}-{level}.weights"


def _open(files: ModelFiles, spec: ModelSpec, dtype: str) -> ModelWeights | GgufWeights:
    as_stored = dtype == "gguf"
    if files.has_safetensors and not as_stored:
        return open_weights(files.directory, spec)
    if files.gguf is None:
        raise ModelUnsupported(f"{files.name!r} is no GGUF file, so it cannot run in dtype 'gguf'; take another dtype.")
    from lmprog_runtime.model.gguf_weights import open_gguf_weights

    return open_gguf_weights(files.gguf, spec, as_stored=as_stored)


def _load(path: Path, files: ModelFiles, dtype: str) -> PackedWeights | None:
    try:
        return load_weights(path, files.revision, dtype, available_levels()[0])
    except (OSError, StaleWeights) as reason:
        log.info("the weights of %s are packed now: %s", files.name, reason)
        return None
