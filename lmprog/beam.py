"""Beam search over a gen: `s += beam(gen("title", max_tokens=12, stop="\\n"), width=4)`.

Each round asks, for every text that is alive, for the `width` likeliest next tokens, and keeps the `width` best of all
these. The texts are branches of one stream: they share its prefix, and the memory of those that drop out is freed at
once. The search ends when no text that is alive can still beat the best one that has ended, or at max_tokens.

The value of a text is its log-probability divided by (number of tokens) ** length_penalty. Source: Wu et al. 2016,
"Google's Neural Machine Translation System", section 7, with the plain power of the length.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from lmprog import arguments, turns
from lmprog.backends.base import GenerateCall, GenerateResult, PendingCall, Sink, Stream, Usage
from lmprog.errors import BackendUnavailable, Cancelled, InvalidArgument, UnsupportedParameter
from lmprog.executor import Executor, Step
from lmprog.nodes import Gen, Node
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.steps import Backoff, pause_before
from lmprog.stop_texts import first_stop

_HAVE_A_MEANING = frozenset({"max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos"})
_REPLACED = frozenset({"temperature", "top_p", "top_k", "min_p", "seed"})  # of programs and runs: nothing is drawn here
_FORCED = 100.0  # the bias that leaves one token only
_DEFAULT_MAX_TOKENS = 128


class Beam(NamedTuple):
    width: int
    length_penalty: float


def beam(node: Node, width: int = 4, *, length_penalty: float = 1.0) -> Gen:
    """A gen that is written by beam search instead of drawn.

    width: how many texts are kept alive. length_penalty: 0 compares whole probabilities, which favours short texts; 1
    compares means per token. Temperature, top_p, top_k, min_p and seed of the program or run do not count here.
    `get_meta_info(name)` has "beams", best first: {"text", "logprob", "score", "token_ids", "finish_reason"}. The text
    goes on with the very tokens of the best, unless a stop has cut it inside of them. Characters that the model writes
    in several tokens are not found. Usage counts every call of the search: two per text and token, each of which reads
    what is before, most of it from the cache.
    Raises InvalidArgument for what a beam search cannot obey: constraints, n, penalties and the like.
    """
    if not isinstance(node, Gen):
        raise InvalidArgument(f"beam takes a gen, not {node!r}.")
    if node.constraint is not None:
        raise InvalidArgument("beam is for free text: a constraint holds for one text only.")
    _refuse(set(node.sampling.given()) - _HAVE_A_MEANING)
    settings = Beam(arguments.integer(1)("width", width), arguments.number(0)("length_penalty", length_penalty))
    return replace(node, beam=settings)


def needs_of(settings: Beam) -> Sampling:
    """What the backend must have."""
    return Sampling(logprobs=True, top_logprobs=settings.width, logit_bias={})


def _refuse(names: set[str]) -> None:
    if names:
        raise InvalidArgument(f"{sorted(names)[0]} has no meaning in a beam search.")


@dataclass(frozen=True, slots=True)
class _Text:
    stream: Stream
    text: str = ""
    logprob: float = 0.0
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""  # empty: alive
    matched_stop: str | int | None = None
    is_cut: bool = False  # the stream holds more than the text

    def score(self, penalty: float) -> float:
        return self.logprob / float(max(1, len(self.token_ids)) ** penalty)


class _Candidate(NamedTuple):
    parent: _Text
    token_id: int
    logprob: float  # of the whole text with this token


class BeamStep(Step, PendingCall):
    def __init__(self, record: Record, call: GenerateCall, settings: Beam) -> None:
        super().__init__(record)
        _refuse(set(call.sampling.given()) - _HAVE_A_MEANING - _REPLACED)
        self._sampling, self._heal, self._settings = call.sampling, call.heal, settings
        self._limit = call.sampling.max_tokens or _DEFAULT_MAX_TOKENS
        self._alive: list[_Text] = []
        self._ended: list[_Text] = []
        self._probes: list[Stream] = []
        self._usage = Usage()
        self._first_usage: Usage | None = None  # of the call that read what was before
        self._round: _Round | None = None
        self._is_cancelled = False

    def start(self, executor: Executor) -> bool:
        self._executor = executor
        self._alive = [_Text(stream) for stream in executor.stream.fork(1)]
        executor.transcript.append(self.record)
        executor.now_calling(self)
        self._probe()
        return False

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._round is not None:
            self._round.cancel()

    # -- rounds ---------------------------------------------------------------------------------------------------

    def _probe(self) -> None:
        """Ask for the likeliest next tokens of each text, on streams that are thrown away."""
        asked = replace(self._one_token(), logprobs=True, top_logprobs=self._settings.width)
        self._probes = [text.stream.fork(1)[0] for text in self._alive]
        self._ask([(probe, asked) for probe in self._probes], self._choose)

    def _choose(self, results: Sequence[GenerateResult]) -> None:
        for probe in self._probes:
            probe.close()
        found = [c for text, r in zip(self._alive, results, strict=True) for c in _candidates(text, r)]
        best = sorted(found, key=lambda candidate: -candidate.logprob)[: self._settings.width]
        streams = [candidate.parent.stream.fork(1)[0] for candidate in best]
        for text in self._alive:
            text.stream.close()
        self._alive = [
            replace(c.parent, stream=stream, logprob=c.logprob, token_ids=(*c.parent.token_ids, c.token_id))
            for c, stream in zip(best, streams, strict=True)
        ]
        forced = [replace(self._one_token(), logit_bias={c.token_id: _FORCED}) for c in best]
        self._ask(list(zip(streams, forced, strict=True)), partial(self._take, best))

    def _take(self, best: Sequence[_Candidate], results: Sequence[GenerateResult]) -> None:
        grown: list[_Text] = []
        for text, candidate, result in zip(self._alive, best, results, strict=True):
            if _is_written(candidate, result):
                grown.append(self._with(text, result))
            else:
                text.stream.close()
        self._alive = [text for text in grown if not text.finish_reason]
        self._ended = self._kept([*self._ended, *(text for text in grown if text.finish_reason)])
        if self._alive and self._may_still_win():
            self._probe()
        else:
            self._finish()

    def _with(self, text: _Text, result: GenerateResult) -> _Text:
        whole = text.text + result.text
        grown = replace(text, text=whole)
        count = len(text.token_ids)
        may_stop = count >= (self._sampling.min_tokens or 0)
        if may_stop and (stop := first_stop(whole, self._sampling.stop or ())) is not None:
            return replace(grown, text=whole[: stop[0]], finish_reason="stop", matched_stop=stop[1], is_cut=True)
        if result.finish_reason != "length":
            return replace(grown, finish_reason=result.finish_reason, matched_stop=result.matched_stop)
        return replace(grown, finish_reason="length" if count >= self._limit else "")

    def _kept(self, ended: list[_Text]) -> list[_Text]:
        """The best of the texts that have ended; the memory of the others is freed."""
        ranked = sorted(ended, key=lambda text: -self._score(text))
        for text in ranked[self._settings.width :]:
            text.stream.close()
        return ranked[: self._settings.width]

    def _may_still_win(self) -> bool:
        """Whatever follows can only lower the log-probability, and at best makes the text as long as it may be."""
        if not self._ended:
            return True
        longest = float(self._limit**self._settings.length_penalty)
        bound = max(text.logprob for text in self._alive) / longest
        return bound > self._score(self._ended[0])

    def _score(self, text: _Text) -> float:
        return text.score(self._settings.length_penalty)

    # -- calls ----------------------------------------------------------------------------------------------------

    def _one_token(self) -> Sampling:
        own, written = self._sampling, len(self._alive[0].token_ids)
        at_least = 1 if written < (own.min_tokens or 0) else None
        return Sampling(
            max_tokens=1,
            min_tokens=at_least,
            temperature=0.0,
            stop_token_ids=own.stop_token_ids,
            ignore_eos=own.ignore_eos,
        )

    def _ask(self, calls: Sequence[tuple[Stream, Sampling]], then: Callable[[list[GenerateResult]], None]) -> None:
        retries = self._executor.settings.retries
        self._round = _Round(len(calls), retries, partial(turns.take, partial(self._go_on, then)))
        for index, (stream, sampling) in enumerate(calls):
            call = GenerateCall(sampling, heal=self._heal, routing=self._executor.settings.routing)
            self._round.begin(index, stream, call)
        if self._is_cancelled:
            self._round.cancel()

    def _go_on(self, then: Callable[[list[GenerateResult]], None]) -> None:
        """All calls of a round are over."""
        assert self._round is not None
        try:
            results = self._round.results()
            self._count(results)
            if self._is_cancelled:
                raise Cancelled("The beam search was cancelled.")
            then(results)
        except BaseException as error:  # this may be a backend's thread: the error belongs to the program
            self._close()
            self._executor.fail(error, self)
            self._executor.resume()

    def _count(self, results: Sequence[GenerateResult]) -> None:
        self._first_usage = self._first_usage or results[0].usage
        for result in results:
            self._usage = self._usage.plus(result.usage)

    # -- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        ranked = self._kept([*self._ended, *self._alive])
        if not ranked:
            raise InvalidArgument(
                "The beam search found no token that may come next and is a whole character;",
                hint="where the text before ends in spaces, leave them out or give heal=False.",
            )
        best = ranked[0]
        if best.is_cut:
            self._executor.stream.append_text(best.text)
        else:
            self._executor.go_on_with(best.stream)
        self._alive, self._ended = [], ranked[0 if best.is_cut else 1 :]
        self._close()
        self._note(best, ranked)
        self._executor.finish(self)
        self._executor.resume()

    def _note(self, best: _Text, ranked: Sequence[_Text]) -> None:
        record, first = self.record, self._first_usage
        assert first is not None
        record.text, record.usage = best.text, self._usage
        record.stream_usage = first._replace(completion_tokens=0 if best.is_cut else len(best.token_ids))
        record.meta = {
            "finish_reason": best.finish_reason or "length",
            "matched_stop": best.matched_stop,
            "is_complete": True,
            "token_ids": best.token_ids,
            "beams": tuple(self._report(text) for text in ranked),
        }

    def _report(self, text: _Text) -> dict[str, Any]:
        return {
            "text": text.text,
            "logprob": text.logprob,
            "score": self._score(text),
            "token_ids": text.token_ids,
            "finish_reason": text.finish_reason or "length",
        }

    def _close(self) -> None:
        for stream in (*self._probes, *(text.stream for text in (*self._alive, *self._ended))):
            stream.close()


class _Round:
    """Calls that run at the same time. When the last is over, `then` is called, once. A call that could not reach the
    model is made again, as often as `retries` says."""

    def __init__(self, count: int, retries: int, then: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._results: list[Any] = [None] * count
        self._attempts = [0] * count
        self._calls: list[PendingCall] = []
        self._left, self._retries, self._then = count, retries, then
        self._is_cancelled = False

    def begin(self, index: int, stream: Stream, call: GenerateCall) -> None:
        again = partial(self.begin, index, stream, call)
        sink = Sink(_ignore, partial(self._arrived, index), partial(self._failed, index, again))
        try:
            self._keep(stream.generate(call, sink))
        except Exception as error:
            self._arrived(index, error)

    def _keep(self, call: PendingCall) -> None:
        """To cancel it with the round, which may have happened already."""
        self._calls.append(call)
        if self._is_cancelled:
            call.cancel()

    def _failed(self, index: int, again: Callable[[], None], error: BaseException) -> None:
        is_last_attempt = self._attempts[index] == self._retries
        if is_last_attempt or self._is_cancelled or not isinstance(error, BackendUnavailable):
            self._arrived(index, error)
            return
        self._attempts[index] += 1
        self._keep(Backoff(pause_before(self._attempts[index]), again, partial(self._arrived, index)))

    def _arrived(self, index: int, result: Any) -> None:
        with self._lock:
            self._results[index] = result
            self._left -= 1
            is_last = self._left == 0
        if isinstance(result, BaseException):
            self.cancel()
        if is_last:
            self._then()

    def cancel(self) -> None:
        """Calls that are kept later are cancelled then."""
        was_cancelled, self._is_cancelled = self._is_cancelled, True
        if not was_cancelled:
            for call in tuple(self._calls):
                call.cancel()

    def results(self) -> list[GenerateResult]:
        """Raises the first failure, one that is no mere consequence of another if there is such."""
        failures = [each for each in self._results if isinstance(each, BaseException)]
        if failures:
            raise next((each for each in failures if not isinstance(each, Cancelled)), failures[0])
        return self._results


def _ignore(_: str) -> None:
    return None


def _is_written(candidate: _Candidate, result: GenerateResult) -> bool:
    """Not where healing forbids the token, nor where it is part of a character, for streams hold whole ones."""
    is_another = bool(result.token_ids) and result.token_ids[0] != candidate.token_id
    is_part = result.finish_reason == "length" and not result.text
    return not is_another and not is_part


def _candidates(text: _Text, result: GenerateResult) -> list[_Candidate]:
    if not result.logprobs or len(result.logprobs[0].top_ids) != len(result.logprobs[0].top):
        raise UnsupportedParameter(
            "A beam search needs the ids of the likeliest tokens, which this backend does not report;",
            hint="run it on Runtime or RuntimeEndpoint.",
        )
    first = result.logprobs[0]
    found = {token_id: logprob for token_id, (_, logprob) in zip(first.top_ids, first.top, strict=True)}
    if first.token_id is not None and first.logprob is not None:
        found[first.token_id] = first.logprob  # where healing forbids the likeliest, at least this one is allowed
    return [_Candidate(text, token_id, text.logprob + logprob) for token_id, logprob in found.items()]
