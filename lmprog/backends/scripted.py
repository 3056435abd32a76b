"""A backend without a model: a public double that programs, and this project, are tested with.

    backend = ScriptedBackend({"capital of France": " Paris", "capital of Japan": " Tokyo"})
    state = capital.run(country="France", backend=backend)
    assert backend.calls[0].sampling.temperature == 0

It needs no network, no thread while nothing is delayed, and answers the same way every time.
A chat is rendered as in `lmprog.chat`. A token is a word with the white space before it: `max_tokens`, `min_tokens`,
the deltas of a stream and all usage counts are in words. `cached_tokens` are the words that this stream, or the one it
was forked from, had already sent to the model.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from lmprog import chat
from lmprog.backends.base import (
    AS_USUAL,
    FEATURES,
    Backend,
    ChoiceScore,
    Constraint,
    FinishReason,
    GenerateCall,
    GenerateResult,
    Once,
    PendingCall,
    Routing,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
    Usage,
)
from lmprog.errors import Cancelled, InvalidArgument
from lmprog.sampling import Sampling
from lmprog.stop_texts import Found, first_of, first_stop
from lmprog.timer import Alarm, timer

_PARAMETERS = frozenset(f.name for f in fields(Sampling)) | FEATURES
_UNSET = Sampling()
_WORD = re.compile(r"\s*\S+|\s+\Z")


@dataclass(eq=False)
class ScriptedCall:
    """One model call as it reached the backend, and what came of it."""

    number: int  # from 1, in order of arrival, `gen` and `select` counted together
    kind: Literal["generate", "score"]
    prompt: str  # all text of the stream so far
    sampling: Sampling = _UNSET  # what is left after precedence: gen, run, @function, backend defaults
    constraint: Constraint | None = None
    heal: bool | None = None
    choices: tuple[str, ...] = ()
    unconditional: bool = False
    routing: Routing = AS_USUAL
    answer: str | None = None  # text that was generated
    error: BaseException | None = None  # Cancelled when the program took the call back


Answers: TypeAlias = "str | BaseException | Callable[[ScriptedCall], Any] | Mapping[str, Any] | Sequence[Any]"
Score: TypeAlias = "float | Sequence[float]"
Scores: TypeAlias = "Mapping[str, Score] | Callable[[ScriptedCall], Mapping[str, Score]]"


class ScriptedBackend(Backend):
    """Answers from a script.

    answers: a str (always this), an exception (always fails), a function of the `ScriptedCall`, a list (one item per
        call, in order; InvalidArgument when it runs out), or a dict of regular expressions: of those found in the
        prompt, the one whose last match ends nearest to the end answers (the first such, if several do). Items of lists
        and dicts, and results of functions, may be any of these again.
    scores, unconditional_scores: natural log-probabilities for `select`: a dict from choice to one number or to a list
        of them, one per token, or a function of the call that returns such a dict. Without `scores`, the choice that
        equals the scripted answer (white space around it aside) gets -0.1 per word and the others -5; all get -1 if
        none does, or if there are no answers.
    errors: call number (from 1) to the exception that this call fails with.
    delay: seconds until a call reports, or a function of the call. The wait is a timer, not a thread.
    token_delay: seconds between the deltas of a streamed call.
    unsupported: parameters and features to refuse, to stand in for a lesser backend.
    checks_constraints: an answer that breaks the regex, choices or JSON syntax asked for fails with InvalidArgument,
        unless max_tokens cut it.

    An answer is cut by `stop`, `stop_regex` and `max_tokens` like a model's. Other sampling parameters are only logged.
    """

    name = "scripted"

    def __init__(
        self,
        answers: Answers | None = None,
        *,
        scores: Scores | None = None,
        unconditional_scores: Scores | None = None,
        errors: Mapping[int, BaseException] | None = None,
        delay: float | Callable[[ScriptedCall], float] = 0.0,
        token_delay: float = 0.0,
        defaults: Sampling | None = None,
        unsupported: Collection[str] = (),
        checks_constraints: bool = True,
    ) -> None:
        self._answer = _script(answers) if answers is not None else None
        self._scores, self._unconditional_scores = scores, unconditional_scores
        self._errors = dict(errors or {})
        self._delay, self._token_delay = delay, token_delay
        self.defaults = defaults or Sampling()
        self._unsupported = frozenset(unsupported)
        self._checks_constraints = checks_constraints
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.calls: list[ScriptedCall] = []
        self.warmed: list[str] = []  # prefixes given to `warm_prefix`
        self.open_streams = 0
        self.running = 0  # calls now waiting for their delay
        self.peak_running = 0

    def open_stream(self) -> Stream:
        return self._new_stream("", known_words=0)

    def supports(self, parameter: str) -> bool:
        return parameter in _PARAMETERS and parameter not in self._unsupported

    def warm_prefix(self, text: str) -> None:
        self.warmed.append(text)

    def server_info(self) -> dict[str, Any]:
        return {"backend": self.name, "calls": len(self.calls), "open_streams": self.open_streams}

    def _new_stream(self, text: str, known_words: int) -> ScriptedStream:
        with self._lock:
            self.open_streams += 1
        return ScriptedStream(self, text, known_words)

    def _close_stream(self) -> None:
        with self._lock:
            self.open_streams -= 1

    def _log(self, kind: Literal["generate", "score"], **details: Any) -> ScriptedCall:
        with self._lock:
            call = ScriptedCall(next(self._numbers), kind, **details)
            self.calls.append(call)
            self.running += 1
            self.peak_running = max(self.peak_running, self.running)
        return call

    def _ended(self) -> None:
        with self._lock:
            self.running -= 1

    def _delay_of(self, call: ScriptedCall) -> float:
        return self._delay(call) if callable(self._delay) else self._delay

    # -- what a call comes to -------------------------------------------------------------------------------------

    def _generate(self, call: ScriptedCall, known_words: int) -> GenerateResult:
        self._raise_injected(call)
        if self._answer is None:
            raise InvalidArgument("This ScriptedBackend has no answers; give it some, or scores if it is for select.")
        cut = _cut(self._answer(call), call.sampling)
        is_complete = call.constraint is None or _satisfies(cut.text, call.constraint)
        if self._checks_constraints and not is_complete and cut.finish_reason != "length":
            raise InvalidArgument(f"The scripted answer {cut.text!r} does not match its {_describe(call.constraint)}.")
        return GenerateResult(
            text=cut.text,
            finish_reason=cut.finish_reason,
            matched_stop=cut.matched_stop,
            is_complete=is_complete,
            usage=_usage(call.prompt, known_words, cut.words),
        )

    def _score(self, call: ScriptedCall, known_words: int) -> ScoreResult:
        self._raise_injected(call)
        given = self._scores_of(call)
        unconditional = _resolve(self._unconditional_scores, call) if call.unconditional else None
        return ScoreResult(
            choices=tuple(
                ChoiceScore(
                    choice,
                    _token_scores(given, choice),
                    unconditional=None if unconditional is None else _token_scores(unconditional, choice),
                )
                for choice in call.choices
            ),
            usage=_usage(call.prompt, known_words, 0),
        )

    def _scores_of(self, call: ScriptedCall) -> Mapping[str, Score]:
        if self._scores is not None or self._answer is None:
            return _resolve(self._scores, call)
        answer = self._answer(call).strip()
        is_scripted = any(choice.strip() == answer for choice in call.choices)

        def per_word(choice: str) -> float:
            return (-0.1 if choice.strip() == answer else -5.0) if is_scripted else -1.0

        return {choice: [per_word(choice)] * _count_words(choice) for choice in call.choices}

    def _raise_injected(self, call: ScriptedCall) -> None:
        if (error := self._errors.get(call.number)) is not None:
            raise error


class ScriptedStream(Stream):
    def __init__(self, backend: ScriptedBackend, text: str, known_words: int) -> None:
        self._backend = backend
        self._pieces = [text]
        self._known_words = known_words
        self._is_open = True

    @property
    def text(self) -> str:
        """All text of the stream."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def append_text(self, text: str) -> None:
        self._pieces.append(text)

    def begin_role(self, role: str) -> None:
        self._pieces.append(chat.role_begin(role))

    def end_role(self) -> None:
        self._pieces.append(chat.ROLE_END)

    def append_special(self, token: str) -> None:
        self._pieces.append(token)

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        logged = self._backend._log(
            "generate",
            prompt=self.text,
            sampling=call.sampling,
            constraint=call.constraint,
            heal=call.heal,
            routing=call.routing,
        )
        delivery = _Delivery(self, logged, sink)
        delivery.start(lambda: self._backend._generate(logged, self._known_words), call.wants_deltas)
        return delivery

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        logged = self._backend._log(
            "score",
            prompt=self.text,
            choices=tuple(call.choices),
            unconditional=call.unconditional,
            routing=call.routing,
        )
        delivery = _Delivery(self, logged, sink)
        delivery.start(lambda: self._backend._score(logged, self._known_words), wants_deltas=False)
        return delivery

    def append_choice(self, choice: ChoiceScore) -> None:
        self._pieces.append(choice.text)
        self._known_words = _count_words(self.text)

    def fork(self, count: int) -> list[Stream]:
        return [self._backend._new_stream(self.text, self._known_words) for _ in range(count)]

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._backend._close_stream()

    def _commit(self, generated: str) -> None:
        self._pieces.append(generated)
        self._known_words = _count_words(self.text)


class _Delivery(PendingCall):
    """Brings one result to its sink: at once, or by timer; exactly once, also when it is cancelled meanwhile."""

    def __init__(self, stream: ScriptedStream, call: ScriptedCall, sink: Sink) -> None:
        self._stream, self._call, self._sink = stream, call, sink
        self._backend = stream._backend
        self._end = Once()
        self._alarm: Alarm | None = None

    def start(self, compute: Callable[[], GenerateResult | ScoreResult], wants_deltas: bool) -> None:
        delay = 0.0
        try:
            delay = self._backend._delay_of(self._call)
            deliver = self._delivering(compute(), wants_deltas)
        except BaseException as error:  # the script's own errors belong to the program that made the call
            deliver = partial(self._fail, error)
        self._after(delay, deliver)

    def _delivering(self, result: GenerateResult | ScoreResult, wants_deltas: bool) -> Callable[[], None]:
        if wants_deltas and isinstance(result, GenerateResult):
            return partial(self._send, result, iter(_WORD.findall(result.text)))
        return partial(self._finish, result)

    def cancel(self) -> None:
        self._fail(Cancelled("The call was cancelled."))

    def _after(self, seconds: float, callback: Callable[[], None]) -> None:
        if seconds > 0:
            self._alarm = timer.call_later(seconds, callback)
        else:
            callback()

    def _send(self, result: GenerateResult, words: Iterable[str]) -> None:
        for word in words:
            if self._end.is_over:
                return
            self._sink.delta(word)
            if self._backend._token_delay > 0:
                self._after(self._backend._token_delay, lambda: self._send(result, words))
                return
        self._finish(result)

    def _finish(self, result: GenerateResult | ScoreResult) -> None:
        if self._ends():
            if isinstance(result, GenerateResult):
                self._call.answer = result.text
                self._stream._commit(result.text)
            self._sink.done(result)

    def _fail(self, error: BaseException) -> None:
        if self._ends():
            self._call.error = error
            self._sink.fail(error)

    def _ends(self) -> bool:
        if not self._end.is_first():
            return False
        if self._alarm is not None:
            self._alarm.cancel()
        self._backend._ended()
        return True


# -- scripts ------------------------------------------------------------------------------------------------------


def _script(answers: Any) -> Callable[[ScriptedCall], str]:
    """Any form of script as a function of the call."""
    if isinstance(answers, str):
        return lambda _: answers
    if isinstance(answers, BaseException):
        return lambda _: _raise(answers)
    if isinstance(answers, Mapping):
        return _ByPattern(answers)
    if isinstance(answers, Sequence):
        return _InTurn(answers)
    if callable(answers):
        return lambda call: _script(answers(call))(call)
    raise InvalidArgument(
        f"A scripted answer is a str, an exception, a function, a list or a dict, not {type(answers).__name__}."
    )


def _raise(error: BaseException) -> str:
    raise error


class _ByPattern:
    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._rules = [(re.compile(pattern, re.DOTALL), _script(answer)) for pattern, answer in answers.items()]

    def __call__(self, call: ScriptedCall) -> str:
        found = [(end, rule) for pattern, rule in self._rules if (end := _last_end(pattern, call.prompt)) is not None]
        if not found:
            raise InvalidArgument(f"No scripted answer matches the prompt that ends with {call.prompt[-80:]!r}.")
        nearest = max(end for end, _ in found)
        return next(rule for end, rule in found if end == nearest)(call)


def _last_end(pattern: re.Pattern[str], text: str) -> int | None:
    return max((match.end() for match in pattern.finditer(text)), default=None)


class _InTurn:
    def __init__(self, answers: Sequence[Any]) -> None:
        self._answers = [_script(answer) for answer in answers]
        self._positions = itertools.count()

    def __call__(self, call: ScriptedCall) -> str:
        position = next(self._positions)
        if position >= len(self._answers):
            raise InvalidArgument(
                f"The script has {len(self._answers)} answers in turn, and call {call.number} asks for one more."
            )
        return self._answers[position](call)


# -- cutting and checking -----------------------------------------------------------------------------------------


class _Cut(NamedTuple):
    text: str
    words: int  # generated, those of a stop string included
    finish_reason: FinishReason
    matched_stop: str | int | None


def _cut(answer: str, sampling: Sampling) -> _Cut:
    """What a model that wants to say `answer` would be stopped at. Stops count once min_tokens words are out."""
    words = _WORD.findall(answer)
    limit = len(words) if sampling.max_tokens is None else min(len(words), sampling.max_tokens)
    shown = "".join(words[:limit])
    search_from = len("".join(words[: sampling.min_tokens or 0]))
    if (stop := _stop_of(shown, search_from, sampling)) is not None:
        text = shown[: stop[0]]
        return _Cut(text, max(1, _count_words(shown[: stop[0] + len(stop[1])])), "stop", stop[1])
    return _Cut(shown, limit, "length" if limit < len(words) else "stop", None)


def _stop_of(text: str, beyond: int, sampling: Sampling) -> Found | None:
    """The first of the stops, and of what stop_regex matches, that ends after `beyond`."""
    matches = re.finditer(sampling.stop_regex, text) if sampling.stop_regex is not None else ()
    found = [(match.start(), match.group()) for match in matches if match.end() > beyond]
    literal = first_stop(text, sampling.stop or (), beyond)
    return first_of([*found, *([literal] if literal else [])])


def _satisfies(text: str, constraint: Constraint) -> bool:
    if constraint.kind == "regex":
        return re.fullmatch(constraint.source, text) is not None
    if constraint.kind == "choices":
        return text in json.loads(constraint.source)
    return constraint.kind != "json_schema" or _is_json(text)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _describe(constraint: Constraint | None) -> str:
    return f"{constraint.kind} {constraint.source!r}" if constraint else "constraint"


def _resolve(scores: Scores | None, call: ScriptedCall) -> Mapping[str, Score]:
    if scores is None:
        return {choice: [-1.0] * _count_words(choice) for choice in call.choices}
    return scores(call) if callable(scores) else scores


def _token_scores(scores: Mapping[str, Score], choice: str) -> tuple[float, ...]:
    if choice not in scores:
        raise InvalidArgument(f"The script has no score for the choice {choice!r}.")
    score = scores[choice]
    return (float(score),) if isinstance(score, int | float) else tuple(score)


def _count_words(text: str) -> int:
    return len(text.split())


def _usage(prompt: str, known_words: int, generated: int) -> Usage:
    words = _count_words(prompt)
    return Usage(prompt_tokens=words, cached_tokens=min(known_words, words), completion_tokens=generated)
