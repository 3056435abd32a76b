"""Record the calls of any backend into a file, and replay them without it.

    with RecordingBackend(Runtime("smollm2-135m"), "calls.jsonl") as backend:
        judge.run(essay=text, backend=backend).sync()

    judge.run(essay=text, backend=ReplayBackend("calls.jsonl"))       # anywhere, without the model

A replay gives the very results: texts, deltas, scores, usage, timings, and errors with their types and messages. It
does not depend on the order in which concurrent runs make their calls; a call that was recorded as cancelled is
cancelled at once. The file is JSON Lines and holds prompts and outputs as plain text.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from lmprog.backends.base import (
    FEATURES,
    Backend,
    ChoiceScore,
    EndedCall,
    GenerateCall,
    GenerateResult,
    PendingCall,
    ScoreCall,
    ScoreResult,
    Sink,
    Stream,
)
from lmprog.backends.forwarding import ForwardingBackend, ForwardingStream
from lmprog.backends.tape import (
    FORMAT,
    Kind,
    Request,
    Track,
    as_text,
    decoded_error,
    decoded_result,
    encoded_error,
    encoded_result,
    generate_parameters,
    score_parameters,
)
from lmprog.errors import InvalidArgument, ReplayMismatch, add_note
from lmprog.sampling import Sampling

_PARAMETERS = (*(f.name for f in fields(Sampling)), *sorted(FEATURES))
_SHOWN = 40  # characters on each side of a difference


# -- recording ------------------------------------------------------------------------------------------------------


class RecordingBackend(ForwardingBackend):
    """A backend that passes all on to `backend`, and writes each call into a new file when it ends."""

    def __init__(self, backend: Backend, path: str | Path) -> None:
        super().__init__(backend)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        try:
            self._file = Path(path).open("x", encoding="utf-8")  # noqa: SIM115 - closed by close()
        except FileExistsError:
            raise InvalidArgument(f"{path} exists;", hint="delete it first if it is to be recorded again.") from None
        supported = {name: backend.supports(name) for name in _PARAMETERS}
        self._write({"format": FORMAT, "defaults": self.defaults.given(), "supports": supported})

    def open_stream(self) -> Stream:
        return _RecordingStream(self, self._backend.open_stream(), Track())

    def close(self) -> None:
        """Closes the file and the backend."""
        self._file.close()
        self._backend.close()

    def next_number(self) -> int:
        return next(self._numbers)

    def write(self, number: int, request: Request, deltas: list[str], **outcome: Any) -> None:
        self._write({"call": number, **request._asdict(), "deltas": deltas, **outcome})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=True) + "\n"  # ASCII, so that lone surrogates survive
        with self._lock:
            self._file.write(text)
            self._file.flush()


class _RecordingStream(ForwardingStream):
    def __init__(self, backend: RecordingBackend, stream: Stream, track: Track) -> None:
        super().__init__(stream)
        self._backend, self._track = backend, track

    def append_text(self, text: str) -> None:
        super().append_text(text)
        self._track.add("text", text)

    def begin_role(self, role: str) -> None:
        super().begin_role(role)
        self._track.add("begin", role)

    def end_role(self) -> None:
        super().end_role()
        self._track.add("end")

    def append_special(self, token: str) -> None:
        super().append_special(token)
        self._track.add("special", token)

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        return self._record("generate", generate_parameters(call), sink, partial(self._stream.generate, call))

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        return self._record("score", score_parameters(call), sink, partial(self._stream.score, call))

    def _record(
        self, kind: Kind, parameters: Mapping[str, Any], sink: Sink, make: Callable[[Sink], PendingCall]
    ) -> PendingCall:
        number = self._backend.next_number()
        request = self._track.request(number, kind, parameters)
        deltas: list[str] = []

        def delta(text: str) -> None:
            deltas.append(text)
            sink.delta(text)

        def done(result: GenerateResult | ScoreResult) -> None:
            try:
                self._backend.write(number, request, deltas, result=encoded_result(result))
            except Exception as error:  # a full disk, a closed file: a waiting program must hear of it
                sink.fail(error)
                return
            if isinstance(result, GenerateResult):
                self._track.add("generated", result.text)
            sink.done(result)

        def fail(error: BaseException) -> None:
            try:
                self._backend.write(number, request, deltas, error=encoded_error(error))
            except Exception as problem:
                add_note(error, f"It could not be recorded: {problem}")
            sink.fail(error)

        try:
            return make(Sink(delta, done, fail))
        except BaseException as error:  # some mistakes are raised at once
            self._backend.write(number, request, deltas, raised=encoded_error(error))
            raise

    def append_choice(self, choice: ChoiceScore) -> None:
        super().append_choice(choice)
        self._track.add("choice", choice.text)

    def fork(self, count: int) -> list[Stream]:
        streams = self._stream.fork(count)
        return [_RecordingStream(self._backend, stream, self._track.fork()) for stream in streams]


# -- replaying ------------------------------------------------------------------------------------------------------


class ReplayBackend(Backend):
    """Answers with what was recorded. A call that was not is ReplayMismatch, which says how it differs."""

    name = "replay"

    def __init__(self, path: str | Path) -> None:
        header, *self._entries = _read(Path(path))
        self.defaults = _defaults(header["defaults"])
        self._supported = header["supports"]
        self._by_number = {entry["call"]: entry for entry in self._entries}
        self._left: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        for entry in sorted(self._entries, key=lambda entry: entry["call"]):
            self._left[entry["key"]].append(entry)
        self._lock = threading.Lock()

    def open_stream(self) -> Stream:
        return _ReplayStream(self, Track())

    def supports(self, parameter: str) -> bool:
        return bool(self._supported.get(parameter, False))

    def unused(self) -> list[int]:
        """Numbers of the recorded calls that no program has made yet."""
        return sorted(entry["call"] for entries in self._left.values() for entry in entries)

    def take(self, request: Request, prompt: str) -> dict[str, Any]:
        """The next entry of a request. `prompt` is all text before it, for the message when there is none."""
        with self._lock:
            entries = self._left[request.key]
            if entries:
                return entries.popleft()
        raise ReplayMismatch(self._difference(request, prompt))

    def _difference(self, request: Request, prompt: str) -> str:
        count = sum(entry["key"] == request.key for entry in self._entries)
        if count:
            return f"This {request.kind} call was recorded {count} times, and is made once more: {_tail(prompt)}."
        closest = self._closest(request, prompt)
        if closest is None:
            return f"No {request.kind} call was recorded; this one has the prompt {_tail(prompt)}."
        recorded = self._prompt_of(closest)
        how = _different_text(recorded, prompt) or _different_parameters(closest, request)
        return f"No recorded call is like this one. The closest, call {closest['call']}, differs: {how}."

    def _closest(self, request: Request, prompt: str) -> dict[str, Any] | None:
        """Of those not used yet, if there are any: the one on the same path with the longest common beginning."""

        def likeness(entry: Mapping[str, Any]) -> tuple[bool, bool, int]:
            is_left = entry in self._left[entry["key"]]
            recorded = self._prompt_of(entry)
            equal = len(prompt) + 1 if recorded == prompt else _common(recorded, prompt)
            return is_left, tuple(entry["path"]) == request.path, equal

        same_kind = [entry for entry in self._entries if entry["kind"] == request.kind]
        return max(same_kind, key=likeness, default=None)

    def _prompt_of(self, entry: Mapping[str, Any]) -> str:
        texts = []
        while True:
            texts.append(as_text(entry["operations"]))
            if entry["after"] is None:
                return "".join(reversed(texts))
            entry = self._by_number[entry["after"]]


class _ReplayStream(Stream):
    def __init__(self, backend: ReplayBackend, track: Track, text: str = "") -> None:
        self._backend, self._track, self._text = backend, track, text

    def append_text(self, text: str) -> None:
        self._add("text", text)

    def begin_role(self, role: str) -> None:
        self._add("begin", role)

    def end_role(self) -> None:
        self._add("end")

    def append_special(self, token: str) -> None:
        self._add("special", token)

    def append_choice(self, choice: ChoiceScore) -> None:
        self._add("choice", choice.text)

    def _add(self, *operation: str) -> None:
        self._track.add(*operation)
        self._text += as_text([list(operation)])

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        entry = self._take("generate", generate_parameters(call))
        if call.wants_deltas:
            for text in entry["deltas"]:
                sink.delta(text)
        return self._answer(entry, sink)

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        return self._answer(self._take("score", score_parameters(call)), sink)

    def _take(self, kind: Kind, parameters: Mapping[str, Any]) -> dict[str, Any]:
        entry = self._backend.take(self._track.request(0, kind, parameters), self._text)
        if "raised" in entry:
            raise decoded_error(entry["raised"])
        return entry

    def _answer(self, entry: Mapping[str, Any], sink: Sink) -> PendingCall:
        if "error" in entry:
            sink.fail(decoded_error(entry["error"]))
        else:
            result = decoded_result(entry["kind"], entry["result"])
            if isinstance(result, GenerateResult):
                self._add("generated", result.text)
            sink.done(result)
        return EndedCall()

    def fork(self, count: int) -> list[Stream]:
        return [_ReplayStream(self._backend, self._track.fork(), self._text) for _ in range(count)]

    def close(self) -> None:
        return None


# -- the file, and differences ----------------------------------------------------------------------------------------


def _read(path: Path) -> list[dict[str, Any]]:
    entries = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                entries.append(json.loads(line))
            except ValueError:
                raise InvalidArgument(
                    f"Line {number} of {path} is not JSON;",
                    hint="if recording was interrupted there, delete that line.",
                ) from None
    if not entries or entries[0].get("format") != FORMAT:
        raise InvalidArgument(f"{path} is not a record of calls (its first line does not say {FORMAT!r}).")
    return entries


def _defaults(given: Mapping[str, Any]) -> Sampling:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    if "logit_bias" in values:
        values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
    return Sampling(**values)


def _common(a: str, b: str) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _different_text(recorded: str, now: str) -> str:
    if recorded == now:
        return ""
    at = _common(recorded, now)
    was, became = recorded[at : at + _SHOWN], now[at : at + _SHOWN]
    after = now[max(0, at - _SHOWN) : at]
    return f"at character {at} of the prompt, after {after!r}, it has {was!r}, and now there is {became!r}"


def _different_parameters(entry: Mapping[str, Any], request: Request) -> str:
    was, now = entry["parameters"], request.parameters
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    if names:
        return ", ".join(f"{name} was {was.get(name)!r} and is {now.get(name)!r}" for name in names)
    return f"it was made in branch {tuple(entry['path'])}, and is made in branch {request.path}"


def _tail(prompt: str) -> str:
    return repr(prompt[-2 * _SHOWN :])
