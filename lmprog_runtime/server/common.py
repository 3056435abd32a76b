"""Small things that all routes share: ids, times, usage blocks, logprob entries, samples of one prompt."""

from __future__ import annotations

import codecs
import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.request import Completion
from lmprog_runtime.server.metrics import TIERS, cached_by_tier


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Unix time in seconds, as OpenAI's `created` fields have it."""
    return int(time.time())


def usage_block(results: Sequence[Completion], samples: int, *, by_tier: bool = False) -> dict[str, Any]:
    """OpenAI's usage: a prompt counts once however many samples it has, cached tokens are those of its first sample.
    `by_tier` adds where the KV of the cached tokens was."""
    firsts = results[::samples]
    prompt = sum(result.usage.prompt_tokens for result in firsts)
    generated = sum(result.usage.completion_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": _cached(firsts, by_tier),
        "completion_tokens_details": {"forced_tokens": sum(result.usage.forced_tokens for result in results)},
    }


def _cached(results: Sequence[Completion], by_tier: bool) -> dict[str, Any]:
    total: dict[str, Any] = {"cached_tokens": sum(result.usage.cached_tokens for result in results)}
    if by_tier:
        parts = [cached_by_tier(result) for result in results]
        total["cached_tokens_details"] = {tier: sum(part[tier] for part in parts) for tier in TIERS}
    return total


def sample_seed(seed: int | None, index: int) -> int | None:
    """Seed of the index-th sample of a request: the first has the request's own, the others are derived from it."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token for people: a control token by its name, parts of characters as U+FFFD."""
    if token_id in tokenizer.special_ids:
        return next(name for name, special in tokenizer.special_names.items() if special == token_id)
    return tokenizer.decode_bytes([token_id]).decode(errors="replace")


class TextOffsets:
    """Where tokens begin in the text that they make together, in characters. A character belongs to its last token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0
        self.has_begun = False

    def push(self, token_ids: Iterable[int]) -> list[int]:
        self.has_begun = True
        offsets = []
        for token_id in token_ids:
            offsets.append(self._length)
            self._length += len(self._decoder.decode(self._tokenizer.decode_bytes([token_id])))
        return offsets
