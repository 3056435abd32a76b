"""llama.cpp through its batch API, as one who knows it well uses it. Needs llama-cpp-python; for comparisons only."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.errors import EngineFailed, RuntimeFault

KINDS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
"""llama.cpp's weights of as many bits as each of our dtypes has. "gguf" is the file as it is."""

_FILE_TYPES = {"F32": "ALL_F32", "BF16": "MOSTLY_BF16", "F16": "MOSTLY_F16", "Q8_0": "MOSTLY_Q8_0",
               "Q4_0": "MOSTLY_Q4_0"}  # fmt: skip
_UBATCH = 512  # rows that llama.cpp computes at once; its default


def library() -> Any:
    """RuntimeFault when llama-cpp-python is not installed."""
    try:
        import llama_cpp  # type: ignore[import-not-found]
    except ImportError as error:
        raise RuntimeFault("This needs llama-cpp-python. Run: pip install llama-cpp-python") from error
    _be_quiet(llama_cpp)
    return llama_cpp


def _be_quiet(library: Any) -> None:
    if not hasattr(library, "_lmprog_log"):  # the callback has to live as long as the library
        library._lmprog_log = library.llama_log_callback(lambda *_: None)
        library.llama_log_set(library._lmprog_log, ctypes.c_void_p(0))
        library.llama_backend_init()


def requantized(file: Path, kind: str, folder: Path, threads: int) -> Path:
    """The GGUF file with weights of another kind (BF16, Q8_0, ...), made by llama.cpp. EngineFailed if it cannot.

    More bits than the file has do not bring back what was lost; speed does not depend on the values.
    """
    llama, made = library(), folder / f"{kind}.gguf"
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread = getattr(llama, f"LLAMA_FTYPE_{_FILE_TYPES[kind]}"), threads
    params.allow_requantize = True
    if llama.llama_model_quantize(str(file).encode(), str(made).encode(), ctypes.byref(params)):
        raise EngineFailed(f"llama.cpp could not make {kind} weights of {file}.")
    return made


class Piece(NamedTuple):
    """Tokens in a row that are new to one or several sequences; several see and keep the same keys and values."""

    tokens: Sequence[int]
    start: int  # position of the first
    sequences: Sequence[int]
    outputs: int = 0  # logits are wanted for so many of the last tokens


class LlamaModel:
    """A GGUF file, loaded. EngineFailed when llama.cpp cannot."""

    def __init__(self, file: Path) -> None:
        self.library = library()
        params = self.library.llama_model_default_params()
        self.pointer = self.library.llama_model_load_from_file(str(file).encode(), params)
        if not self.pointer:
            raise EngineFailed(f"llama.cpp could not load {file}.")
        self.vocab_size = int(self.library.llama_vocab_n_tokens(self.library.llama_model_get_vocab(self.pointer)))

    def close(self) -> None:
        self.library.llama_model_free(self.pointer)


class LlamaContext:
    """Keys and values of up to `sequences` sequences, `tokens` in all, in float16.

    unified: all in one buffer, so that a shared beginning is stored once, and read by each query with whatever else
    is there; otherwise a buffer for each, of which each query reads its own. flash: fused attention.
    """

    def __init__(
        self, model: LlamaModel, *, sequences: int, tokens: int, threads: int, unified: bool, flash: bool = True
    ) -> None:
        self.library, self.vocab_size = model.library, model.vocab_size
        params = self.library.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = tokens, tokens, _UBATCH, sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified, params.flash_attn_type, params.no_perf = unified, int(flash), True
        self.pointer = self.library.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise EngineFailed(f"llama.cpp could not make a context of {tokens} tokens.")
        self._memory = self.library.llama_get_memory(self.pointer)

    def decode(self, pieces: Sequence[Piece]) -> NDArray[np.float32]:
        """Compute all at once. Logits [wanted rows, vocabulary], in order, valid until the next call."""
        return self.compute(pieces, self.batch(pieces))

    def batch(self, pieces: Sequence[Piece]) -> Any:
        """What `compute` takes, as often as wanted."""
        return _batch(self.library, pieces)

    def compute(self, pieces: Sequence[Piece], made: Any) -> NDArray[np.float32]:
        """`decode` for a batch that `batch` made of the pieces."""
        status = self.library.llama_decode(self.pointer, made[0])
        if status:
            raise EngineFailed(f"llama.cpp's llama_decode failed with status {status}.")
        shape = (sum(piece.outputs for piece in pieces), self.vocab_size)
        if not shape[0]:
            return np.empty(shape, np.float32)
        return np.ctypeslib.as_array(self.library.llama_get_logits(self.pointer), shape)

    def share(self, source: int, sequences: Sequence[int]) -> None:
        """All that one sequence has belongs to the others as well."""
        for sequence in sequences:
            self.library.llama_memory_seq_cp(self._memory, source, sequence, -1, -1)

    def cut(self, sequences: Sequence[int], length: int) -> None:
        """Forget what these sequences have from this position on."""
        for sequence in sequences:
            self.library.llama_memory_seq_rm(self._memory, sequence, length, -1)

    def clear(self) -> None:
        self.library.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        self.library.llama_free(self.pointer)


def _batch(library: Any, pieces: Sequence[Piece]) -> tuple[Any, list[NDArray[Any]]]:
    """A llama_batch, and the arrays that it points to."""
    lengths = np.array([len(piece.tokens) for piece in pieces])
    owners = [np.array(piece.sequences, np.int32) for piece in pieces]
    tokens = np.concatenate([np.array(piece.tokens, np.int32) for piece in pieces])
    positions = np.concatenate([np.arange(p.start, p.start + len(p.tokens), dtype=np.int32) for p in pieces])
    counts = np.repeat(np.array([len(each) for each in owners], np.int32), lengths)
    addresses = np.repeat(np.array([each.ctypes.data for each in owners], np.uintp), lengths)
    wanted = np.concatenate([np.arange(len(p.tokens)) >= len(p.tokens) - p.outputs for p in pieces]).astype(np.int8)
    fields = {"token": tokens, "pos": positions, "n_seq_id": counts, "seq_id": addresses, "logits": wanted}
    batch = library.llama_batch(n_tokens=len(tokens))
    for name, kind in library.llama_batch._fields_:
        if name in fields:
            setattr(batch, name, ctypes.cast(fields[name].ctypes.data, kind))
    return batch, [*owners, *fields.values()]
