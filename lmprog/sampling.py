"""Sampling parameters as programs give them: each unset unless given, merged by precedence, never dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """None means "not given here": `gen` over `run` over `@function` over the backend's defaults."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
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

    def over(self, other: Sampling) -> Sampling:
        """These values where given, else the other's."""
        mine, theirs = self.given(), other.given()
        return Sampling(**{**theirs, **mine})

    def given(self) -> dict[str, object]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
