"""From the pieces that a stream holds to token ids. One place, so that programs on this machine and programs over HTTP
get the same tokens."""

from __future__ import annotations

from collections.abc import Sequence

from lmprog_runtime.model.tokenizer import Tokenizer


def commit(tokenizer: Tokenizer, token_ids: Sequence[int], pending: Sequence[int | str]) -> tuple[list[int], str]:
    """(ids up to the last piece of text, that text). `pending` comes after `token_ids`: control ids and literal texts,
    no two texts next to each other."""
    has_text = bool(pending) and isinstance(pending[-1], str)
    tail = str(pending[-1]) if has_text else ""
    head = pending[:-1] if has_text else pending
    is_plain = not token_ids and not head
    start = tokenizer.bos_ids if is_plain else tokenizer.encode_segments(head, is_start=not token_ids)
    return [*token_ids, *start], tokenizer.at_start(tail) if is_plain else tail
