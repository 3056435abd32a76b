"""Small things that all routes share: ids, times, usage blocks, replies."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from lmprog_runtime.request import Completion


class Reply(NamedTuple):
    body: dict[str, Any]


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Unix time in seconds, as OpenAI's `created` fields have it."""
    return int(time.time())


def usage_block(results: Sequence[Completion], samples: int) -> dict[str, Any]:
    """OpenAI's usage: a prompt counts once however many samples it has, cached tokens are those of its first sample."""
    firsts = results[::samples]
    prompt = sum(result.usage.prompt_tokens for result in firsts)
    generated = sum(result.usage.completion_tokens for result in results)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(result.usage.cached_tokens for result in firsts)},
        "completion_tokens_details": {"forced_tokens": sum(result.usage.forced_tokens for result in results)},
    }
