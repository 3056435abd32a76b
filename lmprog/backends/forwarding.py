"""A backend around another one: what it does not change is the other's own."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from lmprog.backends.base import Backend, ChoiceScore, GenerateCall, PendingCall, ScoreCall, Sink, Stream


class ForwardingBackend(Backend):
    """Base of backends that change only the streams of `backend`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.name, self.defaults = backend.name, backend.defaults

    def supports(self, parameter: str) -> bool:
        return self._backend.supports(parameter)

    def warm_prefix(self, text: str) -> None:
        self._backend.warm_prefix(text)

    def flush_cache(self) -> None:
        self._backend.flush_cache()

    def server_info(self) -> dict[str, Any]:
        return self._backend.server_info()

    def close(self) -> None:
        self._backend.close()


class ForwardingStream(Stream):
    """Base of the streams of such backends. Their branches are of the same kind, so that `fork` is theirs."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def continues_turns(self) -> bool:
        return self._stream.continues_turns

    def append_text(self, text: str) -> None:
        self._stream.append_text(text)

    def begin_role(self, role: str) -> None:
        self._stream.begin_role(role)

    def end_role(self) -> None:
        self._stream.end_role()

    def append_special(self, token: str) -> None:
        self._stream.append_special(token)

    def append_choice(self, choice: ChoiceScore) -> None:
        self._stream.append_choice(choice)

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        return self._stream.generate(call, sink)

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        return self._stream.score(call, sink)

    @abstractmethod
    def fork(self, count: int) -> list[Stream]: ...

    def close(self) -> None:
        self._stream.close()
