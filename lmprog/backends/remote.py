"""What backends on the official client packages share: calls on threads, chats as messages, errors as the language's.

Nothing here retries: the client packages are told not to, and `run(retries=...)` does it for the whole program.
"""

from __future__ import annotations

import importlib
import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lmprog.backends.base import (
    Backend,
    ChoiceScore,
    Constraint,
    GenerateCall,
    GenerateResult,
    PendingCall,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
)
from lmprog.backends.threads import CallThreads, Report
from lmprog.errors import (
    BackendError,
    BackendUnavailable,
    LmprogError,
    MissingDependency,
    ModelNotFound,
    PromptTooLong,
    RequestRefused,
    UnsupportedParameter,
    from_code,
)
from lmprog.sampling import Sampling

Message = dict[str, str]
_TRY_AGAIN = (408, 409, 425, 429)


def client_package(name: str) -> Any:
    """A client package, imported when a backend is made. Raises MissingDependency with the pip command."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency(
            f"This backend needs {error.name or name}, which is not installed.",
            hint=f"Run: pip install 'lmprog[{name}]'",
        ) from error


class RemoteBackend(Backend):
    """A backend whose calls block a thread each. At most `max_concurrency` are under way; others wait their turn."""

    model_name: str

    def __init__(self, model_name: str, max_concurrency: int) -> None:
        self.model_name = model_name
        self._calls = CallThreads(max_concurrency, f"lmprog-{self.name}")

    def server_info(self) -> dict[str, Any]:
        return {"backend": self.name, "model": self.model_name}

    def close(self) -> None:
        """Calls that wait are cancelled; those under way are waited for."""
        self._calls.close()

    def start(self, sink: Sink, work: Callable[[Report], Any], commit: Callable[[Any], None]) -> PendingCall:
        """Run `work` on a thread; `commit` what it returns, unless the call was cancelled, and report it."""

        def fail(error: BaseException) -> None:
            sink.fail(language_error(error, self.model_name))

        def finish(result: Any) -> Any:
            commit(result)
            return result

        return self._calls.start(replace(sink, fail=fail), work, finish)


# -- chats ------------------------------------------------------------------------------------------------------------


class ChatBackend(RemoteBackend):
    """A model behind an API that takes messages."""

    continues_turns = False  # whether the assistant's turn may have begun with text of the program

    @abstractmethod
    def chat(self, messages: Sequence[Message], call: GenerateCall, report: Report) -> GenerateResult:
        """The assistant's next message, or how its last one goes on. Blocks; `report` takes pieces of a stream."""

    def open_stream(self) -> Stream:
        return ChatStream(self)


class _Turn(NamedTuple):
    role: str
    text: str


class ChatStream(Stream):
    def __init__(self, backend: ChatBackend, turns: Sequence[_Turn] = (), is_open: bool = False) -> None:
        self.backend = backend
        self._turns = list(turns)
        self._is_open = is_open

    @property
    def continues_turns(self) -> bool:
        return self.backend.continues_turns

    def append_text(self, text: str) -> None:
        if not text:
            return
        if not self._is_open:
            raise RequestRefused(
                f"{self.backend.model_name} takes a chat, and {text[:40]!r} stands outside of its turns;",
                hint="write user(...) around it, or use a completion model.",
            )
        role, before = self._turns[-1]
        self._turns[-1] = _Turn(role, before + text)

    def begin_role(self, role: str) -> None:
        self._turns.append(_Turn(role, ""))
        self._is_open = True

    def end_role(self) -> None:
        self._is_open = False

    def append_special(self, token: str) -> None:
        raise RequestRefused(f"{token!r} cannot be sent: chat APIs take text only.")

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        messages = self._prompt("gen")
        return self.backend.start(
            sink,
            lambda report: self.backend.chat(messages, call, report),
            lambda result: self.append_text(result.text),
        )

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        messages = self._prompt("select")
        if call.unconditional:
            raise UnsupportedParameter(
                f"The {self.backend.name} backend has no probabilities of chats;",
                hint="use another choices_method than unconditional_likelihood_normalized.",
            )
        return self.backend.start(sink, lambda _: self._choose(messages, call), lambda _: None)

    def append_choice(self, choice: ChoiceScore) -> None:
        self.append_text(choice.text)

    def fork(self, count: int) -> list[Stream]:
        return [ChatStream(self.backend, self._turns, self._is_open) for _ in range(count)]

    def close(self) -> None:
        return None

    def _prompt(self, step: str) -> list[Message]:
        if not self._is_open or self._turns[-1].role != "assistant":
            raise RequestRefused(
                f"{self.backend.model_name} takes a chat: a {step} can only stand in the assistant's turn;",
                hint=f"write assistant({step}(...)).",
            )
        begun = self._turns[-1].text
        if begun and not self.backend.continues_turns:
            raise RequestRefused(
                f"{self.backend.model_name} cannot go on with a message that begins with {begun[:40]!r};",
                hint=f"let the {step} come first in the turn, or run the program with num_api_spec_tokens.",
            )
        turns = self._turns if begun else self._turns[:-1]
        return [{"role": turn.role, "content": turn.text} for turn in turns]

    def _choose(self, messages: Sequence[Message], call: ScoreCall) -> ScoreResult:
        """The API is made to answer with one of the choices; it has the score 0, the others have none (-inf)."""
        schema = {
            "type": "object",
            "properties": {"choice": {"type": "string", "enum": list(call.choices)}},
            "required": ["choice"],
            "additionalProperties": False,
        }
        constraint = Constraint("json_schema", json.dumps(schema))
        asked = GenerateCall(Sampling(temperature=0.0, max_tokens=_tokens_for(call.choices)), constraint)
        answer = self.backend.chat(messages, asked, lambda _: None)
        chosen = _chosen(answer.text, call.choices, self.backend.model_name)
        scores = (ChoiceScore(text, (0.0 if text == chosen else -math.inf,)) for text in call.choices)
        return ScoreResult(tuple(scores), answer.usage, answer.timing)


def _tokens_for(choices: Sequence[str]) -> int:
    """Enough for any of the choices as JSON: no tokenizer needs more than one token for a byte."""
    return 32 + max(len(json.dumps(choice)) for choice in choices)


def _chosen(text: str, choices: Sequence[str], model_name: str) -> str:
    try:
        chosen = json.loads(text)["choice"]
    except (ValueError, KeyError, TypeError):
        chosen = None
    if chosen not in choices:
        raise RequestRefused(f"{model_name} was asked for one of {list(choices)}, and answered {text[:80]!r}.")
    return str(chosen)


# -- errors -----------------------------------------------------------------------------------------------------------


def language_error(error: BaseException, model_name: str) -> BaseException:
    """What a client package raises, as the language's own error, so that programs catch one family."""
    if isinstance(error, LmprogError) or not _is_of_a_client(error):
        return error
    ours = _language_error(error, model_name)
    ours.__cause__ = error
    return ours


def _is_of_a_client(error: BaseException) -> bool:
    modules = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    return bool(modules & {"openai", "anthropic", "litellm", "httpx", "httpx2"})


def _language_error(error: BaseException, model_name: str) -> LmprogError:
    status, code = getattr(error, "status_code", None), str(getattr(error, "code", None) or "")
    message = f"{model_name}: {getattr(error, 'message', None) or error}"
    known = from_code(code, message)
    if type(known) is not BackendError:  # an lmprog server is at the other end
        return known
    if code == "insufficient_quota":
        return RequestRefused(message)
    if status is None or status >= 500 or status in _TRY_AGAIN:
        return BackendUnavailable(message)
    if code == "context_length_exceeded" or "ContextWindow" in type(error).__name__ or "prompt is too long" in message:
        return PromptTooLong(message)
    if status == 404:
        return ModelNotFound(message)
    if status in (401, 403):
        return RequestRefused(message, hint="Check the API key.")
    return RequestRefused(message)


class Clock:
    """Times of one call, as results report them."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: float | None = None

    def token(self) -> None:
        if self._first is None:
            self._first = time.monotonic()

    def timing(self) -> dict[str, float]:
        total = time.monotonic() - self._start
        return {"total": total} if self._first is None else {"first_token": self._first - self._start, "total": total}
