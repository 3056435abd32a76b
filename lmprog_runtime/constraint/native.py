"""Driver of the C++ core (core/): a plain C library, called through ctypes, which lets go of the GIL in each call."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.limits import Limits, refuse

if TYPE_CHECKING:
    from lmprog_runtime.constraint.vocabulary import Vocabulary

LIBRARY = Path(__file__).with_name("core") / "_core.so"

_P, _I, _L, _B, _D = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p, ctypes.c_double
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "arena_new": (_P, (_L, _L, _L, _L, _D, _D)),
    "arena_free": (None, (_P,)),
    "arena_bytes": (_L, (_P,)),
    "arena_nodes": (_L, (_P,)),
    "byte_set": (_I, (_P, _B)),
    "literal": (_I, (_P, _B, _I)),
    "concat": (_I, (_P, _P, _I)),
    "alternate": (_I, (_P, _P, _I)),
    "intersect": (_I, (_P, _P, _I)),
    "complement": (_I, (_P, _I)),
    "repeat": (_I, (_P, _I, _I, _I)),
    "lexeme": (_I, (_P, _I)),
    "reference": (_I, (_P, _I)),
    "define": (_I, (_P, _I, _I)),
    "members": (_I, (_P, _P, _B, _I, _I, _I, _I, _I, _I)),
    "code_points": (_I, (_P, _P, _I, _I)),
    "words": (_I, (_P, _B, _P, _I)),
    "is_nullable": (_I, (_P, _I)),
    "is_final": (_I, (_P, _I)),
    "is_empty": (_I, (_P, _I)),
    "step": (_I, (_P, _I, _B, _I)),
    "seal": (_I, (_P, _I, _B)),
    "shortest": (_I, (_P, _I, _B, _I)),
    "vocabulary_new": (_P, (_B, _P, _I)),
    "vocabulary_free": (None, (_P,)),
    "mask": (_I, (_P, _P, _I, _P, _I)),
    "advance": (_I, (_P, _P, _I, _I)),
    "forced": (_I, (_P, _P, _I, _B, _I, _P)),
}
_UNDECIDED = 2


class Library:
    """The functions of the library under their names without prefix."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(loaded, f"lmprog_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:  # for type checkers: set in __init__
        raise AttributeError(name)


@cache
def load_library() -> Library | None:
    """None where the package was installed without a compiler; the pure Python core then does the work."""
    return Library(LIBRARY) if LIBRARY.exists() else None


def _ints(values: Sequence[int]) -> bytes:
    """As the library reads them; three times as fast as a ctypes array."""
    return array("i", values).tobytes()


class NativeVocabulary:
    """A token trie in the library. Freed with its last user."""

    def __init__(self, library: Library, token_bytes: Sequence[bytes]) -> None:
        offsets = np.zeros(len(token_bytes) + 1, np.int32)
        np.cumsum([len(data) for data in token_bytes], out=offsets[1:])
        self.handle: int = library.vocabulary_new(b"".join(token_bytes), offsets.ctypes.data, len(token_bytes))
        weakref.finalize(self, library.vocabulary_free, self.handle)


class NativeArena:
    """The arena of the C++ core, with the interface that `constraint.arena.Arena` describes."""

    def __init__(self, library: Library, limits: Limits) -> None:
        self.library, self.limits = library, limits
        self.handle: int = library.arena_new(
            limits.nodes,
            limits.arena_bytes,
            limits.search_states,
            limits.width,
            limits.compile_seconds,
            limits.walk_seconds,
        )
        weakref.finalize(self, library.arena_free, self.handle)

    def checked(self, result: int) -> int:
        if result < 0:
            refuse(result, self.limits)
        return result

    @property
    def nbytes(self) -> int:
        return int(self.library.arena_bytes(self.handle))

    # -- building ---------------------------------------------------------------------------------------------------

    def byte_set(self, data: bytes) -> int:
        bits = 0
        for byte in data:
            bits |= 1 << byte
        return self.checked(self.library.byte_set(self.handle, bits.to_bytes(32, "little")))

    def literal(self, data: bytes) -> int:
        return self.checked(self.library.literal(self.handle, data, len(data)))

    def concat(self, parts: Sequence[int]) -> int:
        return self.checked(self.library.concat(self.handle, _ints(parts), len(parts)))

    def alternate(self, members: Sequence[int]) -> int:
        return self.checked(self.library.alternate(self.handle, _ints(members), len(members)))

    def intersect(self, members: Sequence[int]) -> int:
        return self.checked(self.library.intersect(self.handle, _ints(members), len(members)))

    def complement(self, x: int) -> int:
        return self.checked(self.library.complement(self.handle, x))

    def repeat(self, x: int, low: int, high: int) -> int:
        return self.checked(self.library.repeat(self.handle, x, low, high))

    def lexeme(self, x: int) -> int:
        return self.checked(self.library.lexeme(self.handle, x))

    def reference(self, nullable: bool) -> int:
        return self.checked(self.library.reference(self.handle, nullable))

    def define(self, reference: int, x: int) -> None:
        self.checked(self.library.define(self.handle, reference, x))

    def members(
        self,
        pairs: Sequence[int],
        required: Sequence[bool],
        extra: int,
        separator: int,
        low: int,
        high: int,
        any_order: bool,
    ) -> int:
        flags = bytes(required)
        return self.checked(
            self.library.members(self.handle, _ints(pairs), flags, len(pairs), extra, separator, low, high, any_order)
        )

    def code_points(self, ranges: Sequence[tuple[int, int]], encoding: int) -> int:
        bounds = _ints([bound for pair in ranges for bound in pair])
        return self.checked(self.library.code_points(self.handle, bounds, len(ranges), encoding))

    def words(self, choices: Sequence[bytes]) -> int:
        offsets = _ints([0, *accumulate(map(len, choices))])
        return self.checked(self.library.words(self.handle, b"".join(choices), offsets, len(choices)))

    # -- asking -----------------------------------------------------------------------------------------------------

    def is_nullable(self, x: int) -> bool:
        return bool(self.checked(self.library.is_nullable(self.handle, x)))

    def is_final(self, x: int) -> bool:
        return bool(self.checked(self.library.is_final(self.handle, x)))

    def is_empty(self, x: int) -> bool | None:
        found = self.checked(self.library.is_empty(self.handle, x))
        return None if found == _UNDECIDED else bool(found)

    def step(self, x: int, data: bytes) -> int:
        return self.checked(self.library.step(self.handle, x, data, len(data)))

    def seal(self, root: int, producible: bytes) -> int:
        return self.checked(self.library.seal(self.handle, root, producible))

    def shortest(self, x: int, most: int) -> bytes | None:
        text = ctypes.create_string_buffer(most)
        length = self.checked(self.library.shortest(self.handle, x, text, most))
        return text.raw[:length] if length <= most else None


class NativeWalker:
    """Masks and jumps of one arena over one vocabulary."""

    def __init__(self, arena: NativeArena, vocabulary: Vocabulary) -> None:
        self.arena, self._library, self._arena_handle = arena, arena.library, arena.handle
        self._vocabulary = vocabulary.native  # kept: the library's arena points at it
        self._vocabulary_handle = self._vocabulary.handle
        self._words, self._size = vocabulary.mask_words, vocabulary.size
        self._buffer = ctypes.c_uint32 * self._words

    def mask(self, state: int) -> tuple[NDArray[np.uint32], bool]:
        out = self._buffer()  # cheaper to pass to the library than a numpy array's address
        is_accepting = self._library.mask(self._arena_handle, self._vocabulary_handle, state, out, self._words)
        if is_accepting < 0:
            self.arena.checked(is_accepting)
        return np.frombuffer(memoryview(out), np.uint32), is_accepting == 1

    def advance(self, state: int, token_id: int) -> int:
        if not 0 <= token_id < self._size:
            return 0
        found: int = self._library.advance(self._arena_handle, self._vocabulary_handle, state, token_id)
        return found if found >= 0 else self.arena.checked(found)

    def forced(self, state: int, most: int) -> tuple[bytes, int]:
        text, cut = ctypes.create_string_buffer(most), _I()
        count = self.arena.checked(
            self._library.forced(self._arena_handle, self._vocabulary_handle, state, text, most, ctypes.byref(cut))
        )
        return text.raw[:count], cut.value
