"""The contract between the language and whatever runs the model.

A `Backend` opens `Stream`s. A stream is the token (or text, or message) sequence behind one program state; the state's
executor is its only caller, one call at a time. Text handed to a stream is pending until a commit point (`generate`,
`score`, `fork`); the stream decides how it becomes tokens. A stream never blocks: model calls report to a `Sink`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from lmprog.sampling import Sampling

FinishReason = Literal["stop", "length", "abort", "error"]

FEATURES = frozenset(
    (
        *(
            "regex",
            "json_schema",
            "choices",
            "grammar",
            "score",
            "choice_logprobs",
            "heal",
            "special",
            "stream",
            "roles",
        ),
        *("cache", "cache_salt", "priority"),
    )
)
"""What a backend may have beside sampling parameters. score: it can choose; choice_logprobs: and gives each choice's
log-probabilities, which chat APIs do not; cache, cache_salt, priority: see `Routing`."""


class Usage(NamedTuple):
    """Token counts of one model call, each token counted once; they add up with `plus`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # part of prompt_tokens whose KV was reused
    completion_tokens: int = 0  # generated + forced
    forced_tokens: int = 0  # part of completion_tokens appended without sampling

    def plus(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(self, other, strict=True)))


class Constraint(NamedTuple):
    kind: Literal["regex", "json_schema", "choices", "grammar"]
    source: str  # regex, schema as JSON text in declared key order, choices as a JSON list, grammar text
    whitespace: str = "compact"


class Routing(NamedTuple):
    """How a call is served. It changes no token, only what is computed again and when."""

    cache: bool = True  # False: compute all of the prompt, whatever is known of it
    cache_salt: str | None = None  # KV is shared with calls of the same salt only; None and "" are different salts
    priority: int = 0  # among the calls that wait, higher goes first

    def given(self) -> list[str]:
        """Names of those that ask for something."""
        return [name for name, value in self._asdict().items() if value != self._field_defaults[name]]


AS_USUAL = Routing()


@dataclass(frozen=True, slots=True)
class GenerateCall:
    sampling: Sampling  # without n and best_of: each sample is a call of its own
    constraint: Constraint | None = None
    heal: bool | None = None  # None: heal a trailing run of spaces; True: heal any last token; False: never
    wants_deltas: bool = False  # the program streams; a backend may skip deltas otherwise
    routing: Routing = AS_USUAL


@dataclass(frozen=True, slots=True)
class ScoreCall:
    choices: Sequence[str]
    unconditional: bool = False  # also score each choice without the prompt
    routing: Routing = AS_USUAL


class TokenLogprob(NamedTuple):
    token: str
    token_id: int | None
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()
    top_ids: tuple[int, ...] = ()  # of the tokens in `top`, where the backend knows them


class GenerateResult(NamedTuple):
    text: str  # without the stop string
    finish_reason: FinishReason
    matched_stop: str | int | None
    is_complete: bool  # False: a constraint was cut before its language was satisfied
    usage: Usage
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    timing: Mapping[str, float] = {}  # seconds: queue, first_token, total
    meta: Mapping[str, Any] = {}  # whatever else the backend reports


class ChoiceScore(NamedTuple):
    """Log-probabilities (natural) of one choice. All choices of a call are scored from the same split point of the
    joint text, so `logprobs` may begin with tokens that hold the tail of the prompt."""

    text: str
    logprobs: tuple[float, ...]
    token_ids: tuple[int, ...] = ()
    unconditional: tuple[float, ...] | None = None


class ScoreResult(NamedTuple):
    choices: tuple[ChoiceScore, ...]  # in the order asked for
    usage: Usage
    timing: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a call reports. Each may be called from any thread and must return at once. Exactly one of `done` and
    `fail` is called, once, and nothing after it."""

    delta: Callable[[str], None]
    done: Callable[[Any], None]  # GenerateResult or ScoreResult
    fail: Callable[[BaseException], None]


class Once:
    """Tells the first that asks, of any number of threads, that it is the first: whose end of a call counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_over = False  # somebody has asked

    def is_first(self) -> bool:
        with self._lock:
            was_over, self.is_over = self.is_over, True
            return not was_over


class PendingCall(ABC):
    @abstractmethod
    def cancel(self) -> None:
        """Stop the call soon: its sink gets `fail(Cancelled)` unless it had ended before. Any thread; idempotent."""


class EndedCall(PendingCall):
    """One whose sink has heard of its end already."""

    def cancel(self) -> None:
        return None


class Stream(ABC):
    @property
    def continues_turns(self) -> bool:
        """Whether the assistant's turn may have begun with text of the program; chats of some APIs may not."""
        return True

    @abstractmethod
    def append_text(self, text: str) -> None:
        """Literal text; never makes control tokens."""

    @abstractmethod
    def begin_role(self, role: str) -> None:
        """Open a chat turn: `system`, `user`, `assistant`, or another role that the model's template knows."""

    @abstractmethod
    def end_role(self) -> None: ...

    @abstractmethod
    def append_special(self, token: str) -> None:
        """A control token by its name, for programs that really want one. ValueError when the model has none such."""

    @abstractmethod
    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        """Commit pending text and generate. On success the output is part of the stream before `sink.done` is called.
        User mistakes (too long, bad constraint, a parameter this backend does not know) go to `sink.fail`."""

    @abstractmethod
    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        """Commit pending text and score continuations. The stream is unchanged until `append_choice`."""

    @abstractmethod
    def append_choice(self, choice: ChoiceScore) -> None:
        """Continue with a choice of the last `score`, with the very tokens that were scored."""

    @abstractmethod
    def fork(self, count: int) -> list[Stream]:
        """Commit pending text and branch. The children share everything up to here; the parent can go on."""

    @abstractmethod
    def close(self) -> None:
        """The state has ended: its KV is not needed by this stream any more. Idempotent."""


_Backend = TypeVar("_Backend", bound="Backend")


class Backend(ABC):
    """A model that programs can run on. Thread-safe. As a context manager, it is closed at the end."""

    name: str = "backend"
    defaults: Sampling = Sampling()

    @abstractmethod
    def open_stream(self) -> Stream: ...

    @abstractmethod
    def supports(self, parameter: str) -> bool:
        """Whether a sampling parameter (a field of Sampling) or one of FEATURES reaches the model. A program that uses
        one that does not is refused by name before the call."""

    def warm_prefix(self, text: str) -> None:  # noqa: B027 - most backends keep no KV
        """Compute the KV of a prefix ahead of its use, where that means something."""

    def flush_cache(self) -> None:  # noqa: B027
        """Forget every prefix that nothing uses, where there is a cache."""

    def server_info(self) -> dict[str, Any]:
        return {"backend": self.name}

    def close(self) -> None:
        return None

    def __enter__(self: _Backend) -> _Backend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
