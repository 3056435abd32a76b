"""A model of four tokens, as a backend: its distribution follows from the tokens so far, so that anything about it can
be found by trying all texts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product

from lmprog.backends.base import (
    Backend,
    ChoiceScore,
    EndedCall,
    FinishReason,
    GenerateCall,
    GenerateResult,
    PendingCall,
    ScoreCall,
    Sink,
    Stream,
    TokenLogprob,
    Usage,
)

TOKENS = ("a", "b", "c", "")  # the last one ends the text
END = len(TOKENS) - 1


@cache
def logprobs_after(prompt: str, ids: tuple[int, ...]) -> tuple[float, ...]:
    weights = [random.Random(f"{prompt}{ids}{token}").random() ** 3 + 0.01 for token in range(len(TOKENS))]
    return tuple(math.log(weight / sum(weights)) for weight in weights)


def texts_up_to(prompt: str, limit: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """All texts that have ended, or are `limit` tokens long, with their log-probabilities."""
    for length in range(1, limit + 1):
        for ids in product(range(len(TOKENS)), repeat=length):
            if END in ids[:-1] or (ids[-1] != END and length < limit):
                continue
            yield ids, sum(logprobs_after(prompt, ids[:i])[token] for i, token in enumerate(ids))


class TableBackend(Backend):
    name = "table"

    def __init__(self, *, errors: Mapping[int, Exception] | None = None) -> None:
        """errors: what calls fail with, by their number from 1."""
        self.open_streams = self.most_streams = self.calls = 0
        self.errors = errors or {}

    def open_stream(self) -> Stream:
        return TableStream(self, "", ())

    def supports(self, parameter: str) -> bool:
        return parameter != "score"


class TableStream(Stream):
    def __init__(self, backend: TableBackend, prompt: str, ids: tuple[int, ...]) -> None:
        self.backend, self.prompt, self.ids, self.is_open = backend, prompt, ids, True
        backend.open_streams += 1
        backend.most_streams = max(backend.most_streams, backend.open_streams)

    def append_text(self, text: str) -> None:
        self.prompt, self.ids = self.prompt + "".join(TOKENS[i] for i in self.ids) + text, ()

    def begin_role(self, role: str) -> None:
        self.append_text(f"<{role}>")

    def end_role(self) -> None:
        self.append_text("</>")

    def append_special(self, token: str) -> None:
        self.append_text(token)

    def score(self, call: ScoreCall, sink: Sink) -> PendingCall:
        raise NotImplementedError

    def append_choice(self, choice: ChoiceScore) -> None:
        raise NotImplementedError

    def generate(self, call: GenerateCall, sink: Sink) -> PendingCall:
        assert self.is_open
        assert call.sampling.max_tokens == 1
        self.backend.calls += 1
        if (error := self.backend.errors.get(self.backend.calls)) is not None:
            sink.fail(error)
            return EndedCall()
        logprobs = logprobs_after(self.prompt, self.ids)
        may_end = not (call.sampling.min_tokens or call.sampling.ignore_eos)
        allowed = [i for i in range(len(TOKENS)) if i != END or may_end]
        ranked = sorted(allowed, key=lambda i: -logprobs[i])
        bias = call.sampling.logit_bias or {}
        chosen = max(allowed, key=lambda i: logprobs[i] + bias.get(i, 0.0))
        top = ranked[: call.sampling.top_logprobs or 0]
        entry = TokenLogprob(
            TOKENS[chosen], chosen, logprobs[chosen], tuple((TOKENS[i], logprobs[i]) for i in top), tuple(top)
        )
        if chosen != END:
            self.ids = (*self.ids, chosen)
        usage = Usage(len(self.prompt) + len(self.ids), 0, 1)
        reason: FinishReason = "stop" if chosen == END else "length"
        ids = () if chosen == END else (chosen,)
        sink.done(GenerateResult(TOKENS[chosen], reason, None, True, usage, ids, (entry,)))
        return EndedCall()

    def fork(self, count: int) -> list[Stream]:
        return [TableStream(self.backend, self.prompt, self.ids) for _ in range(count)]

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.backend.open_streams -= 1
