"""One request for several gens: `num_api_spec_tokens`, for API models, where each call pays for the whole prompt again.

    s += "Name: " + gen("name", stop="\\n") + "\\nBorn: " + gen("born", stop="\\n") + "\\nJob: " + gen("job", stop=".")

The first gen asks for up to `num_api_spec_tokens` tokens without its stop. What follows in the program is compared with
what the model wrote ahead: as long as the texts agree, the next gens are answered from there, up to their stops, and
cost nothing. Where they do not agree, the rest is thrown away and a new request is made.

Chats cannot go on with a message that has begun. There the model writes the whole message, which must agree with the
program's text from its beginning (white space before it aside); the prompt has to show the format. It is asked up to
5 times.

In text, only gens with a stop are answered in this way. The length of such answers is bounded by num_api_spec_tokens
and not by their max_tokens, for nobody here can count tokens. Source: SGLang's API speculative execution
(arXiv 2312.07104, section 5).
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, NamedTuple

from lmprog.backends.base import (
    Backend,
    ChoiceScore,
    EndedCall,
    GenerateCall,
    GenerateResult,
    PendingCall,
    Sink,
    Stream,
    Usage,
)
from lmprog.backends.forwarding import ForwardingBackend, ForwardingStream
from lmprog.errors import Cancelled, RequestRefused
from lmprog.sampling import Sampling
from lmprog.stop_texts import first_stop

_ATTEMPTS = 5


class SpeculativeBackend(ForwardingBackend):
    """A backend whose streams write ahead on `backend`."""

    def __init__(self, backend: Backend, num_api_spec_tokens: int) -> None:
        super().__init__(backend)
        self._tokens = num_api_spec_tokens

    def open_stream(self) -> Stream:
        return SpeculativeStream(self._backend.open_stream(), self._tokens)


def speculating(backend: Backend, num_api_spec_tokens: int) -> SpeculativeBackend:
    """A backend that writes ahead; one that does so already gets the new length."""
    inner = backend._backend if isinstance(backend, SpeculativeBackend) else backend
    return SpeculativeBackend(inner, num_api_spec_tokens)


class _Ahead(NamedTuple):
    """What the model has written and the program has not come to yet."""

    text: str
    is_whole: bool  # the model had ended there by itself
    sampling: Sampling  # how it was drawn, stops and lengths aside


class SpeculativeStream(ForwardingStream):
    def __init__(self, stream: Stream, tokens: int, ahead: _Ahead | None = None) -> None:
        super().__init__(stream)
        self._tokens, self._ahead = tokens, ahead
        self._turn: _OpenTurn | None = None  # of a chat that cannot be continued

    # -- text -----------------------------------------------------------------------------------------------------

    def append_text(self, text: str) -> None:
        super().append_text(text)
        if self._turn is not None:
            self._turn.text += text
        if self._ahead is not None and self._ahead.text.startswith(text):
            self._ahead = self._ahead._replace(text=self._ahead.text[len(text) :])
        else:
            self._ahead = None

    def begin_role(self, role: str) -> None:
        super().begin_role(role)
        self._leave()
        if role == "assistant" and not self.continues_turns:
            self._turn = _OpenTurn(self._stream.fork(1)[0])

    def end_role(self) -> None:
        super().end_role()
        self._leave()

    def append_special(self, token: str) -> None:
        super().append_special(token)
        self._ahead = None

    def append_choice(self, choice: ChoiceScore) -> None:
        super().append_choice(choice)
        if self._turn is not None:
            self._turn.text += choice.text
        self._ahead = None

    def fork(self, count: int) -> list[Stream]:
        return [self._branch(stream) for stream in self._stream.fork(count)]

    def _branch(self, stream: Stream) -> SpeculativeStream:
        child = SpeculativeStream(stream, self._tokens, self._ahead)
        if self._turn is not None:
            child._turn = _OpenTurn(self._turn.start.fork(1)[0], self._turn.text)
        return child

    def close(self) -> None:
        self._leave()
        super().close()

    def _leave(self) -> None:
        self._ahead = None
        if self._turn is not None:
            self._turn.start.close()
            self._turn = None

    # -- calls ----------------------------------------------------------------------------------------------------

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        if not self._may_be_answered(call):
            self._ahead = None
            return super().generate(call, sink)
        if self._ahead is not None and self._ahead.sampling == _drawn(call):
            found = first_stop(self._ahead.text, call.sampling.stop or ())
            if found is not None or self._ahead.is_whole or not call.sampling.stop:
                self._answer(call, Usage(), {}, sink)
                return EndedCall()
        return _Speculation(self, call, sink)

    def _may_be_answered(self, call: GenerateCall) -> bool:
        sampling = call.sampling
        if call.constraint is not None or sampling.stop_regex is not None or sampling.stop_token_ids is not None:
            return False
        return bool(sampling.stop) or (self._turn is not None and self._turn.text != "")

    def fork_to_ask(self) -> Stream:
        """A branch for the model to write ahead on, for the caller to close."""
        start = self._stream if self._turn is None else self._turn.start
        return start.fork(1)[0]

    def asked(self, call: GenerateCall) -> GenerateCall:
        """What the model is asked in place of `call`."""
        sampling = replace(call.sampling, stop=None, max_tokens=self._tokens)
        return GenerateCall(sampling, heal=call.heal, routing=call.routing)

    def take(self, call: GenerateCall, result: GenerateResult, usage: Usage, sink: Sink) -> bool:
        """Go on with what the model wrote. False when it does not agree with the program."""
        text = result.text
        if self._turn is not None:
            begun, text = self._turn.text.lstrip(), text.lstrip()
            if not text.startswith(begun):
                return False
            text = text[len(begun) :]
        self._ahead = _Ahead(text, result.finish_reason == "stop", _drawn(call))
        self._answer(call, usage, result.timing, sink)
        return True

    def begun(self) -> str:
        return "" if self._turn is None else self._turn.text

    def _answer(self, call: GenerateCall, usage: Usage, timing: Any, sink: Sink) -> None:
        assert self._ahead is not None
        ahead = self._ahead
        found = first_stop(ahead.text, call.sampling.stop or ())
        text, stop = (ahead.text, None) if found is None else (ahead.text[: found[0]], found[1])
        self.append_text(text)
        if call.wants_deltas and text:
            sink.delta(text)
        is_stopped = stop is not None or ahead.is_whole
        sink.done(
            GenerateResult(
                text=text,
                finish_reason="stop" if is_stopped else "length",
                matched_stop=stop,
                is_complete=True,
                usage=usage,
                timing=timing,
                meta={"speculated": True},
            )
        )


class _OpenTurn:
    def __init__(self, start: Stream, text: str = "") -> None:
        self.start = start  # as it was when the turn was opened
        self.text = text  # what the program and its gens have written in it


class _Speculation(PendingCall):
    """Asks until the model agrees with the program, or has been asked often enough."""

    def __init__(self, stream: SpeculativeStream, call: GenerateCall, sink: Sink) -> None:
        self._stream, self._call, self._sink = stream, call, sink
        self._lock = threading.Lock()
        self._attempt = 0
        self._usage = Usage()
        self._is_cancelled = False
        self._inner: PendingCall | None = None
        self._ask()

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled, inner = True, self._inner
        if inner is not None:
            inner.cancel()

    def _ask(self) -> None:
        self._attempt += 1
        attempt, branch = self._attempt, self._stream.fork_to_ask()

        def done(result: GenerateResult) -> None:
            branch.close()
            self._done(result)

        def fail(error: BaseException) -> None:
            branch.close()
            self._sink.fail(error)

        try:
            inner = branch.generate(self._stream.asked(self._call), Sink(lambda _: None, done, fail))
        except BaseException:
            branch.close()
            raise
        with self._lock:
            if attempt == self._attempt:  # else this one is over, and another was begun meanwhile
                self._inner = inner
            is_cancelled = self._is_cancelled
        if is_cancelled:
            inner.cancel()

    def _done(self, result: GenerateResult) -> None:
        self._usage = self._usage.plus(result.usage)
        if self._is_cancelled:
            self._sink.fail(Cancelled("The call was cancelled."))
        elif self._stream.take(self._call, result, self._usage, self._sink):
            return
        elif self._attempt < _ATTEMPTS:
            self._ask_again()
        else:
            self._sink.fail(self._disagreement(result.text))

    def _ask_again(self) -> None:
        try:
            self._ask()
        except Exception as error:  # this is a backend's thread: the error belongs to the program
            self._sink.fail(error)

    def _disagreement(self, text: str) -> RequestRefused:
        begun = self._stream.begun()
        return RequestRefused(
            f"The model was asked {_ATTEMPTS} times for a message that begins with {begun!r}, and wrote {text[:80]!r};",
            hint="show it the format in the prompt.",
        )


def _drawn(call: GenerateCall) -> Sampling:
    return replace(call.sampling, stop=None, max_tokens=None)
