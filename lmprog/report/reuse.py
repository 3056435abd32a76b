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
        usage = _on_stream(record)
        if samples:
            in_time = sorted(samples, key=lambda sample: sample.started)  # the first of all read what was pending
            ends = {sample: self.walk(sample.children, known, list(pending)) for sample in in_time}
            known = ends[samples[0]]  # the stream goes on with the first of those kept
            pending.clear()
        elif usage.prompt_tokens:
            self._share(pending, known, usage)
            known = usage.prompt_tokens + usage.completion_tokens
            pending.clear()
        if record.status == "done" and not samples and not usage.completion_tokens:
            pending.append(record)  # text that the next call reads: the only choice, an answer without its thoughts
        return known

    def _share(self, texts: Sequence[Record], known: int, usage: Usage) -> None:
        characters = sum(len(record.text) for record in texts)
        if not characters:
            return
        known = min(known, usage.prompt_tokens - 1)  # a stop string that was written counts, but left the stream
        new = usage.prompt_tokens - known
        left = round(characters * min(max(usage.cached_tokens - known, 0), new) / new)
        for record in texts:
            cached = min(left, len(record.text))
            left -= cached
            if record.kind != "gen":  # generated, whoever read it again
                self.found.setdefault(record, cached)


def _on_stream(record: Record) -> Usage:
    """A call as its stream saw it: the prompt read once, and of what was written or scored only what stays."""
    if record.stream_usage is not None:
        return record.stream_usage
    if record.kind != "select":
        return record.usage
    logprobs = dict(zip(record.meta.get("choices", ()), record.meta.get("logprobs", ()), strict=False))
    prompt = record.usage.prompt_tokens - _tokens_scored(record)
    return record.usage._replace(prompt_tokens=prompt, completion_tokens=len(logprobs.get(record.text, ())))


def _tokens_scored(record: Record) -> int:
    """Prompt tokens of a select that are not its prompt: beginnings that choices share were computed once."""
    ids: Iterable[tuple[int, ...]] = record.meta.get("token_ids", ())
    alone: Iterable[tuple[float, ...] | None] = record.meta.get("unconditional_logprobs", ())
    return len({each[:end] for each in ids for end in range(1, len(each) + 1)}) + sum(len(each or ()) for each in alone)
