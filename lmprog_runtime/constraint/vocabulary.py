"""What constraints know of a tokenizer: the bytes of its tokens, and which ids are no text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property

from lmprog_runtime.constraint.closing import Spelling
from lmprog_runtime.constraint.fallback.token_trie import TokenTrie
from lmprog_runtime.constraint.lru import LruByBytes
from lmprog_runtime.constraint.native import NativeVocabulary, load_library

Encode = Callable[[str], list[int]]


class Vocabulary:
    """The tokens of a model. Make one per model and keep it: token sets and compiled constraints are shared through it.

    token_bytes: per id the bytes that it stands for; None or b"" for ids that are no text. eos_ids: allowed where a
    constraint is satisfied. special_ids: never allowed (unless in eos_ids), whatever their bytes. encode: the
    tokenizer's canonical encoding without special tokens; without it, only single-token forcing is done.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_ids: Collection[int],
        special_ids: Collection[int],
        encode: Encode | None = None,
    ) -> None:
        self.size = len(token_bytes)
        self.mask_words = (self.size + 31) // 32
        self.eos_ids = tuple(sorted(eos_ids))
        silent = set(special_ids) | set(eos_ids)
        self.token_bytes = [b"" if i in silent else (data or b"") for i, data in enumerate(token_bytes)]
        self.encode = encode
        self.compiled = LruByBytes()

    @cached_property
    def producible(self) -> bytes:
        """32 bytes: bit b%8 of byte b//8 is set when some token has byte b."""
        bits = 0
        for byte in set().union(*self.token_bytes):
            bits |= 1 << byte
        return bits.to_bytes(32, "little")

    @cached_property
    def has_all_single_bytes(self) -> bool:
        """Whether each producible byte is a token by itself: then whatever bytes a constraint wants can be written."""
        single = {data[0] for data in self.token_bytes if len(data) == 1}
        return single == set().union(*self.token_bytes)

    @cached_property
    def ordered(self) -> list[tuple[bytes, int]]:
        """(bytes, id) of all text tokens, sorted."""
        return sorted((data, i) for i, data in enumerate(self.token_bytes) if data)

    def starting_with(self, prefix: bytes) -> Iterator[tuple[bytes, int]]:
        for at in range(bisect_left(self.ordered, (prefix, -1)), len(self.ordered)):
            if not self.ordered[at][0].startswith(prefix):
                return
            yield self.ordered[at]

    def can_write(self, data: bytes) -> bool:
        bits = int.from_bytes(self.producible, "little")
        return all(bits >> byte & 1 for byte in data)

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling(self.token_bytes, self.encode)

    @cached_property
    def python_trie(self) -> TokenTrie:
        """The token trie of the pure Python core."""
        return TokenTrie(self.ordered, self.size)

    @cached_property
    def native(self) -> NativeVocabulary:
        """The token trie of the C++ core, where that is there."""
        library = load_library()
        assert library is not None
        return NativeVocabulary(library, self.token_bytes)
