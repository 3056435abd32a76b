"""How to end within a budget: a text in the fewest tokens that spell it.

The fewest, not the canonical ones, since behind the first token the rest then takes exactly one token less; a tokenizer
may encode the end of a text in more tokens than the text. The canonical tokens are taken where they are as few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

MOST_BYTES = 4_096
"""Of a completion; a state that is further from its end has none."""

START = 3
"""Bytes at the start of a text that tell which lengths of tokens are worth a look: with 128,000 tokens, few."""

_MOST_REMEMBERED = 20_000

_Known = dict[bytes, tuple[int, int]]
"""Of a text: how many tokens spell it (-1: none do), and the length of the first."""


class Spelling:
    """Of one vocabulary. Remembers ends of texts: those of one generation's completions are mostly the same."""

    def __init__(self, token_bytes: Sequence[bytes], encode: Callable[[str], list[int]] | None) -> None:
        self._token_bytes, self._encode = token_bytes, encode
        self._ids = {data: i for i, data in enumerate(token_bytes) if data}
        self._lengths = _lengths_by_start(self._ids)
        self._known: _Known = {b"": (0, 0)}

    def count(self, text: bytes) -> int | None:
        """How many tokens spell the text; None when none do."""
        count = self._solved(text)[text][0]
        return None if count < 0 else count

    def _solved(self, text: bytes) -> _Known:
        """What is known, with all ends of the text. Another thread may start anew meanwhile: go on with this one."""
        if len(self._known) > _MOST_REMEMBERED:
            self._known = {b"": (0, 0)}
        known = self._known
        for at in range(len(text) - 1, -1, -1):
            rest = text[at:]
            if rest not in known:
                known[rest] = self._best(rest, known)
        return known

    def _best(self, text: bytes, known: _Known) -> tuple[int, int]:
        """Of the splits with the fewest tokens, the one with the longest first token."""
        best = (-1, 0)
        for length in (*range(1, START), *self._lengths.get(text[:START], ())):
            if length > len(text) or text[:length] not in self._ids:
                continue
            after = known[text[length:]][0]
            if after >= 0 and (best[0] < 0 or after + 1 <= best[0]):
                best = (after + 1, length)
        return best

    def tokens(self, text: bytes) -> Sequence[int]:
        """Ids that spell the text; [] when none do."""
        known = self._solved(text)
        if known[text][0] <= 0:
            return []
        return self._canonical(text, known[text][0]) or self._fewest(text, known)

    def _canonical(self, text: bytes, count: int) -> list[int]:
        if self._encode is None:
            return []
        try:
            ids = self._encode(text.decode())
        except UnicodeDecodeError:
            return []  # begins inside a character
        spelled = b"".join(self._token_bytes[i] for i in ids)
        return ids if len(ids) == count and spelled == text else []

    def _fewest(self, text: bytes, known: _Known) -> list[int]:
        found = []
        while text:
            length = known[text][1]
            found.append(self._ids[text[:length]])
            text = text[length:]
        return found


def _lengths_by_start(tokens: Iterable[bytes]) -> dict[bytes, list[int]]:
    """For each start of START bytes the lengths of the tokens that have it, ascending."""
    found: dict[bytes, set[int]] = defaultdict(set)
    for data in tokens:
        if len(data) >= START:
            found[data[:START]].add(len(data))
    return {start: sorted(lengths) for start, lengths in found.items()}
