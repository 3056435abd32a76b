"""Sampling parameters as programs give them: each unset unless given, merged by precedence, never dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None means "not given here": `gen` over `run` over `@function` over the backend's defaults."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    stop: tuple[str, ...] | None = None
    stop_token_ids: tuple[int, ...] | None = None
    stop_regex: str | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    finish: Literal["close"] | None = None  # how a constrained output goes on when few tokens are left

    def over(self, other: Sampling) -> Sampling:
        """These values where given, else the other's."""
        mine = self.given()
        return replace(other, **mine) if mine else other

    def given(self) -> dict[str, Any]:
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not None}


_NAMES = tuple(f.name for f in fields(Sampling))

OF_ONE_CALL = frozenset(_NAMES) - {"n", "best_of"}
"""What a backend's call takes. Several samples are branches, each with a call of its own."""
