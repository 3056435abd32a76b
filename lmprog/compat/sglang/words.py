"""SGLang's words: its parameter names and order, on lmprog's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lmprog.choices import ChoicesMethod, token_length_normalized
from lmprog.errors import InvalidArgument
from lmprog.language import (
    assistant,
    assistant_begin,
    assistant_end,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from lmprog.language import gen as lmprog_gen
from lmprog.language import select as lmprog_select
from lmprog.nodes import Gen, Select, Special
from lmprog.reasoning import separate_reasoning

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "gen",
    "gen_int",
    "gen_string",
    "image",
    "select",
    "separate_reasoning",
    "system",
    "system_begin",
    "system_end",
    "translated",
    "user",
    "user_begin",
    "user_end",
    "video",
]

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""

_RENAMED = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "return_logprob": "logprobs",
    "top_logprobs_num": "top_logprobs",
}


def translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """SGLang's sampling options by lmprog's names. Options that say nothing (None, an empty stop) are left out."""
    options = {
        _RENAMED.get(name, name): value
        for name, value in given.items()
        if value is not None and not (name.startswith("stop") and len(value) == 0)
    }
    if options.pop("logprob_start_len", -1) != -1:
        raise InvalidArgument("lmprog has no log-probabilities of prompts; leave logprob_start_len out.")
    options.pop("return_text_in_logprobs", None)  # the texts are always there
    if isinstance(options.get("stop_regex"), list | tuple):
        options["stop_regex"] = "|".join(f"(?:{each})" for each in options["stop_regex"])
    return options


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Iterable[str] | None = None,
    stop_token_ids: Iterable[int] | None = None,
    stop_regex: str | list[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: Iterable[str] | None = None,
    choices_method: ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: Any = None,
) -> Gen | Select:
    """`lmprog.gen`, with the parameters in SGLang's order. The variable is the text, whatever its form."""
    given = {k: v for k, v in locals().items() if k not in ("name", "choices", "choices_method")}
    if choices:
        return select(name, choices, temperature or 0.0, choices_method or token_length_normalized)
    node = lmprog_gen(name, **translated(given))
    return replace(node, convert=None) if isinstance(node, Gen) else node


def gen_int(
    name: str | None = None, max_tokens: int | None = None, n: int | None = None, **options: Any
) -> Gen | Select:
    return gen(name, max_tokens, n=n, dtype=int, **options)


def gen_string(
    name: str | None = None, max_tokens: int | None = None, n: int | None = None, **options: Any
) -> Gen | Select:
    return gen(name, max_tokens, n=n, dtype=str, **options)


def select(
    name: str | None = None,
    choices: Iterable[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod = token_length_normalized,
) -> Select:
    return lmprog_select(name, choices, temperature, choices_method)


def image(path: str) -> Special:
    """Stands in the prompt as a control token, which models that see no images refuse by name."""
    return Special(f"<image {path}>")


def video(path: str, num_frames: int) -> Special:
    """Like `image`."""
    return Special(f"<video {path}, {num_frames} frames>")
