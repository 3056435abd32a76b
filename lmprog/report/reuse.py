"""Which of a program's text the model had read before.

Backends count cached tokens per call; text that a call was the first to read lies between the end of the call before it
and its own prompt's end. All or nothing of that is cached as a rule, and then the result is exact. A border inside a
text is placed in proportion to the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lmprog.backends.base import Usage
from lmprog.record import Record


def cached_characters(root: Record) -> dict[Record, int]:
    """For each record whose text a call has read: how many characters at its beginning came from the cache."""
    reuse = _Reuse()
    reuse.walk(root.children, 0, [])
    return reuse.found


class _Reuse:
    def __init__(self) -> None:
        self.found: dict[Record, int] = {}

    def walk(self, records: Iterable[Record], known: int, pending: list[Record]) -> int:
        """known: tokens of the stream that earlier calls have read or written. Returns the same for the end."""
        for record in tuple(records):
            if record.kind == "program":  # has a stream of its own
                self.walk(record.children, 0, [])
            elif record.kind in ("gen", "select"):
                known = self._call(record, known, pending)
            elif record.kind == "fork":
                for branch in record.children:
                    self.walk(branch.children, known, list(pending))
            elif record.text and record.kind != "scope":  # a scope repeats what was written inside
                pending.append(record)
        return known

    def _call(self, record: Record, known: int, pending: list[Record]) -> int:
        samples = [child for child in record.children if child.kind == "branch"]
        if samples:
            ends = [self.walk(sample.children, known, list(pending)) for sample in samples]
            known = ends[0]  # the stream goes on with the first
        elif record.usage.prompt_tokens:
            self._share(pending, known, record.usage)
            known = record.usage.prompt_tokens + record.usage.completion_tokens + _tokens_of_choice(record)
        elif record.status == "done":  # the only choice: text that the next call reads
            pending.append(record)
            return known
        pending.clear()
        return known

    def _share(self, texts: Sequence[Record], known: int, usage: Usage) -> None:
        new = usage.prompt_tokens - known
        cached = min(max(usage.cached_tokens - known, 0), new)
        characters = sum(len(record.text) for record in texts)
        left = round(characters * cached / new) if new > 0 else characters
        for record in texts:
            self.found.setdefault(record, min(left, len(record.text)))
            left -= min(left, len(record.text))


def _tokens_of_choice(record: Record) -> int:
    logprobs = dict(zip(record.meta.get("choices", ()), record.meta.get("logprobs", ()), strict=False))
    return len(logprobs.get(record.text, ())) if record.kind == "select" else 0
