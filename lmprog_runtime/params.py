"""Range checks of sampling parameters: one sentence per mistake, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.request import SamplingParams

_Check = tuple[str, Callable[[float], bool], str]

_RANGES: tuple[_Check, ...] = (
    ("temperature", lambda v: v >= 0, "0 (greedy) or more"),
    ("top_p", lambda v: 0 < v <= 1, "above 0 and at most 1"),
    ("top_k", lambda v: v == -1 or v >= 1, "-1 (all) or at least 1"),
    ("min_p", lambda v: 0 <= v <= 1, "from 0 to 1"),
    ("repetition_penalty", lambda v: v > 0, "above 0"),
    ("frequency_penalty", lambda v: -2 <= v <= 2, "from -2 to 2"),
    ("presence_penalty", lambda v: -2 <= v <= 2, "from -2 to 2"),
    ("min_tokens", lambda v: v >= 0, "0 or more"),
    ("top_logprobs", lambda v: 0 <= v <= 100, "from 0 to 100"),
)


def validate(params: SamplingParams, vocab_size: int) -> None:
    """Raise RequestRefused that names the parameter, its value and the range it must lie in."""
    for name, is_fine, text in _RANGES:
        value = getattr(params, name)
        if not math.isfinite(value) or not is_fine(value):
            raise RequestRefused(f"{name} is {value}; it must be {text}.")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise RequestRefused(f"max_tokens is {params.max_tokens}; it must be at least 1.")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestRefused(f"min_tokens ({params.min_tokens}) is above max_tokens ({params.max_tokens}).")
    if params.finish not in (None, "close"):
        raise RequestRefused(f"finish is {params.finish!r}; it must be None or 'close'.")
    if any(not text for text in params.stop):
        raise RequestRefused("stop has an empty string, which would end every answer at once; remove it.")
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    check_token_ids("logit_bias", tuple(params.logit_bias), vocab_size)
    for token_id, bias in params.logit_bias.items():
        if not math.isfinite(bias) or not -100 <= bias <= 100:
            raise RequestRefused(f"logit_bias of token {token_id} is {bias}; it must be from -100 to 100.")


def check_token_ids(name: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    """Raise RequestRefused with the index of the first id that is no token of the model."""
    for index, token_id in enumerate(token_ids):
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise RequestRefused(f"{name}[{index}] is {token_id!r}; token ids of this model are 0 to {vocab_size - 1}.")
