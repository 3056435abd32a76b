"""Nouns of the engine: what a caller asks for and what comes back. No logic, no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Ranges are checked by `lmprog_runtime.sampling_checks.validate`."""

    max_tokens: int | None = None  # None: what is left of the context
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = -1  # -1: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: str | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: bool = False  # logprobs of output tokens
    top_logprobs: int = 0
    finish: Literal["close"] | None = None  # "close": bring a constrained output to its end within max_tokens
    prompt_logprobs_start: int | None = None  # first prompt position whose logprob is wanted; None: none


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output must match. Compiled off the engine thread, cached by content."""

    kind: Literal["regex", "json_schema", "choices", "grammar", "structural_tag"]
    source: str  # the regex, the schema as JSON text (key order kept), the choices as a JSON list, the grammar text
    whitespace: str = "compact"  # JSON only: "compact", "dense", "flexible", or a regex
    member_order: Literal["schema", "any"] = "schema"  # JSON only: of declared members
    formats: Literal["assert", "annotate"] = "assert"  # JSON only: whether `format` is enforced
    max_digits: int | None = None  # JSON only: of a number that is no constant; None: no cap
    max_items: int | None = None  # JSON only: of a list without maxItems; None: no cap


class Usage(NamedTuple):
    """Token counts of one request, each token counted once."""

    prompt_tokens: int
    cached_tokens: int  # part of prompt_tokens that was not computed again
    completion_tokens: int  # generated + forced
    forced_tokens: int  # part of completion_tokens appended without sampling


class TokenLogprob(NamedTuple):
    token_id: int
    logprob: float | None  # None only for the very first token of a prompt
    top: tuple[tuple[int, float], ...]  # (token id, logprob), best first; empty unless asked for


class Delta(NamedTuple):
    """A streamed piece: text that can no longer change, and the tokens that completed it."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    forced: int  # how many of token_ids were forced


class Completion(NamedTuple):
    """The end of a request."""

    text: str  # without the stop string
    token_ids: tuple[int, ...]  # all generated ids, including those of a stop string or an end token
    kept: int  # token_ids[:kept] lie wholly inside `text`; the rest of `text` after them is `tail`
    tail: str
    finish_reason: FinishReason
    matched_stop: str | int | None
    is_complete: bool  # False: a constraint was cut before its language was satisfied
    usage: Usage
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    segments: tuple[tuple[Literal["generated", "forced"], str], ...]  # `text`, cut where its source changes
    timing: Mapping[str, float]  # seconds: queue, first_token, total
    loaded: tuple[int, int] = (0, 0)  # cached tokens that came from the host tier and from the file tier
    drafts: tuple[int, int] = (0, 0)  # guessed tokens that were verified, and those of them that came true


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    token_ids: Sequence[int]
    params: SamplingParams
    constraint: Constraint | None = None
    prefix_text: bytes = b""  # token healing: the output must start with these bytes, which are not part of `text`
    salt: str | None = None  # cache isolation; None and "" are different keys
    priority: int = 0
    use_cache: bool = True
    lease: Any = None  # engine Lease that follows this stream, or None


class ChoiceTokens(NamedTuple):
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural log, one per token id, given prompt and earlier tokens
    is_greedy: bool | None = None  # each token is the likeliest at its place; None unless asked for


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Log-probabilities of several continuations of one prefix, computed as a token trie in one extend."""

    token_ids: Sequence[int]  # the common prefix, at least one token
    choices: Sequence[Sequence[int]]
    wants_greedy: bool = False  # also say whether each choice is what greedy decoding would give
    salt: str | None = None
    priority: int = 0
    use_cache: bool = True
    lease: Any = None


class ScoreResult(NamedTuple):
    choices: tuple[ChoiceTokens, ...]
    usage: Usage
    timing: Mapping[str, float]


class Sink(NamedTuple):
    """Where a request reports. Called on the engine thread: return at once. After `done` or `fail`, nothing more."""

    delta: Callable[[Delta], None]
    done: Callable[[Any], None]  # Completion or ScoreResult
    fail: Callable[[BaseException], None]
