"""One generation: from sampled tokens to text, stops, constraint state and the final result. No torch, no scheduling.

Owns what is particular to one request on the output side. The scheduler owns its slots, the engine the order of events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.closing import Closer
from lmprog_runtime.constraint.base import DEAD, Grammar
from lmprog_runtime.drafting import Drafter
from lmprog_runtime.model.sampler import Sampled, SamplerState
from lmprog_runtime.model.tokenizer import Detokenizer, Tokenizer
from lmprog_runtime.request import (
    Completion,
    Delta,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Sink,
    TokenLogprob,
    Usage,
)
from lmprog_runtime.scheduler import Sequence
from lmprog_runtime.stop_regex import RegexStopMatcher
from lmprog_runtime.stops import StopMatcher
from lmprog_runtime.timing import Timing


class Accepted(NamedTuple):
    """What one sampled token led to: ids to append to the sequence, and whether that was the end."""

    token_ids: list[int]
    is_finished: bool


class Generation:
    """The output side of one request. Lives on the engine thread."""

    sequence: Sequence  # set when the engine hands it to the scheduler

    def __init__(
        self,
        request: GenerateRequest,
        sink: Sink,
        tokenizer: Tokenizer,
        grammar: Grammar | None,
        *,
        jump_forward: bool,
        speculation: bool = False,
        keep_logprobs: bool = False,
    ) -> None:
        """`keep_logprobs`: note the log-probability of every sampled token in `kept_logprobs`, asked for or not."""
        self.request, self.sink, self.timing = request, sink, Timing()
        self.kept_logprobs: list[float | None] | None = [] if keep_logprobs else None
        wanted = replace(request.params, logprobs=True) if keep_logprobs else request.params
        self.sampler = SamplerState(wanted, request.token_ids)
        self._is_noted = wanted.logprobs or self.sampler.has_penalties  # whether tokens are needed besides the output
        self._tokenizer = tokenizer
        self._grammar, self._state = grammar, grammar.start if grammar else DEAD
        self._jumps, self.speculates = jump_forward and grammar is not None, speculation
        self.drafter = Drafter(grammar)
        self._plan: list[int] = []  # the next tokens, all of them forced
        self._closer = Closer(grammar) if grammar is not None and request.params.finish == "close" else None
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = _stop_matcher(request.params)
        self._stop_ids = frozenset(request.params.stop_token_ids).union(
            () if request.params.ignore_eos else tokenizer.eos_ids
        )
        self._to_skip = len(request.prefix_text.decode())  # characters of the prompt's tail, at the front
        self._min_tokens = request.params.min_tokens
        # one entry for each token of the output
        self._ids: list[int] = []
        self._is_forced: list[bool] = []
        self._pieces: list[str] = []  # its text, of which the healed prompt tail and stops are not shown
        self._text: list[str] = []  # what is shown; at the end one more entry, of what was held back
        self._logprobs: list[TokenLogprob] = []  # none unless wanted
        self._inside: set[int] = set()  # tokens after which the output cannot be cut: inside a character
        self._sent = 0  # tokens
        self._prompt_logprobs: dict[int, TokenLogprob] = {}
        self._matched: str | int | None = None

    @property
    def known_length(self) -> int:
        """Tokens of the sequence without the guesses at its end."""
        return len(self.sequence.token_ids) - self.drafter.pending

    def draft(self, running: int, most: Callable[[], int]) -> list[int]:
        """At most `most()` guesses at the tokens after the sequence, while `running` requests share a step."""
        return self.drafter.draft(self.sequence.key, self._state, running, most)

    # -- before sampling ------------------------------------------------------------------------------------------

    def mask(self) -> NDArray[np.uint32] | None:
        """Bits of the tokens allowed next, or None when all are. Below min_tokens the end tokens are taken out.

        A forced text has the tokenizer's own cut, whether jump-forward writes it or the model is asked for each token:
        other cuts of the same text would lead the model elsewhere.
        """
        if self._grammar is None:
            return self._without_end_tokens(None) if self._min_tokens and self._end_is_too_early() else None
        if not (self._jumps and self._ids) and (forced := self._forced_next()):
            return self._only(forced[0])
        mask = self._grammar.mask(self._state)
        if not self._end_is_too_early():
            return mask
        return self._without_end_tokens(mask)

    def _end_is_too_early(self) -> bool:
        return len(self._ids) < self._min_tokens

    def _without_end_tokens(self, mask: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
        out = np.full(self._mask_words, 0xFFFFFFFF, np.uint32) if mask is None else mask.copy()
        for token_id in self._end_ids():
            out[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        if mask is not None and not out.any():
            return mask  # the constraint is finished: it ends although min_tokens asks for more
        return out

    def _only(self, token_id: int) -> NDArray[np.uint32]:
        mask = np.zeros(self._mask_words, np.uint32)
        mask[token_id >> 5] = 1 << (token_id & 31)
        return mask

    @property
    def _mask_words(self) -> int:
        return (self._tokenizer.vocab_size + 31) // 32

    def _end_ids(self) -> frozenset[int]:
        return self._tokenizer.eos_ids | frozenset(self.request.params.stop_token_ids)

    # -- after sampling -------------------------------------------------------------------------------------------

    def accept(self, sampled: Sampled) -> Accepted:
        """Take one sampled token, and what the constraint forces after it."""
        if not self._ids:
            self.timing.first_token = time.monotonic()
        token_id = sampled.token_id if self._closer is None else self._closing(self._closer, sampled.token_id)
        if token_id is None:
            return Accepted([], True)
        finished = self._take(token_id, sampled if token_id == sampled.token_id else None)
        appended = [token_id]
        while self._jumps and not finished and (forced := self._forced_next()):
            for token_id in forced:
                self.sampler.skip_draw()
                finished = self._take(token_id, None)
                appended.append(token_id)
                if finished:
                    break
        if not finished:
            self._send()
        return Accepted(appended, finished)

    def _closing(self, closer: Closer, token_id: int) -> int | None:
        """The token, or what must come in its place so that the output can be completed; None: it ends here."""
        if closer.allows(self._state, token_id, self._tokens_left()):
            return token_id
        return closer.instead(self._state)

    def _forced_next(self) -> list[int]:
        if self._grammar is None or self._end_is_too_early():
            return []
        if not self._plan:
            forced = self._grammar.forced_tokens(self._state)
            # the tokenizer's own cut of a text may need more tokens than the shortest completion: then one by one
            fits = self._closer is None or len(forced) + self._tokens_to_finish_after(forced) <= self._tokens_left()
            self._plan = forced if fits else []
        return self._plan

    def _tokens_to_finish_after(self, token_ids: list[int]) -> int:
        assert self._grammar is not None
        state = self._state
        for token_id in token_ids:
            state = self._grammar.advance(state, token_id)
        return self._grammar.tokens_to_finish(state)

    def _tokens_left(self) -> int:
        return self.sequence.token_limit - len(self.request.token_ids) - len(self._ids)

    def _take(self, token_id: int, sampled: Sampled | None) -> bool:
        """Record a token, forced if not sampled; True when the output ends with it."""
        self._ids.append(token_id)
        self._is_forced.append(sampled is None)
        if self._is_noted:
            self._note(token_id, sampled)
        if self._grammar is not None:
            self._plan = self._plan[1:] if self._plan[:1] == [token_id] else []
            self._state = self._grammar.advance(self._state, token_id)
        piece = self._detokenizer.push(token_id)
        self._pieces.append(piece)
        if self._detokenizer.unfinished:
            self._inside.add(len(self._pieces) - 1)
        shown = self._skip_prefix(piece) if self._to_skip else piece
        if self._stops is None:
            self._text.append(shown)
        elif self._is_stopped(self._stops, shown):
            return True
        if token_id in self._stop_ids:
            self._matched = token_id
            return True
        is_final = self._grammar is not None and self._grammar.is_final(self._state)
        return is_final or self._tokens_left() <= 0

    def _note(self, token_id: int, sampled: Sampled | None) -> None:
        self.sampler.observe(token_id)
        if self.kept_logprobs is not None:
            self.kept_logprobs.append(None if sampled is None else sampled.logprob)
        if self.request.params.logprobs:
            self._logprobs.append(TokenLogprob(token_id, 0.0, ()) if sampled is None else TokenLogprob(*sampled))

    def _skip_prefix(self, piece: str) -> str:
        skipped = min(self._to_skip, len(piece))
        self._to_skip -= skipped
        return piece[skipped:]

    def _is_stopped(self, stops: StopMatcher | RegexStopMatcher, piece: str) -> bool:
        """Show text as far as the stops let it pass; True when one ended the output."""
        shown, self._matched, _ = stops.push(piece, is_active=len(self._ids) > self._min_tokens)
        self._text.append(shown)
        return self._matched is not None

    def _send(self) -> None:
        sent = self._sent
        if text := "".join(self._text[sent:]):
            self._sent = len(self._ids)
            forced = self._is_forced[sent:].count(True)
            self.sink.delta(Delta(text, tuple(self._ids[sent:]), tuple(self._logprobs[sent:]), forced))

    # -- prompt logprobs ------------------------------------------------------------------------------------------

    def note_prompt_logprob(self, position: int, logprob: TokenLogprob) -> None:
        """Logprob of the prompt token at `position`. A preempted request computes some twice; the first one stays."""
        self._prompt_logprobs.setdefault(position, logprob)

    # -- the end --------------------------------------------------------------------------------------------------

    def complete(self) -> Completion:
        """The result. Sends what is still to be streamed."""
        reason = self._finish_reason()
        if self._stops is not None and not isinstance(self._matched, str):
            self._text.append(self._stops.flush())
        self._send()
        text = "".join(self._text)
        kept, tail = self._kept_tokens(text)
        prompt = self.request.token_ids
        return Completion(
            text=text,
            token_ids=tuple(self._ids),
            kept=kept,
            tail=tail,
            finish_reason=reason,
            matched_stop=self._matched,
            is_complete=self._is_complete(),
            usage=Usage(len(prompt), self.sequence.cached_tokens, len(self._ids), sum(self._is_forced)),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprob_list(),
            segments=self._segments(text),
            timing=self.timing.seconds(),
            loaded=self.sequence.loaded_tokens,
            drafts=(self.drafter.drafted, self.drafter.accepted),
        )

    def _finish_reason(self) -> FinishReason:
        if self._matched is not None:
            return "stop"
        if self._grammar is not None and self._grammar.is_final(self._state):
            return "stop"
        was_closed = self._closer is not None and self._closer.has_intervened and self._is_complete()
        return "stop" if was_closed else "length"

    def _is_complete(self) -> bool:
        return self._grammar is None or (self._state != DEAD and self._grammar.is_accepting(self._state))

    def _kept_tokens(self, text: str) -> tuple[int, str]:
        """How many generated tokens lie wholly inside the shown text, and the text after them."""
        healed = len(self.request.prefix_text.decode())
        end, shown = sum(map(len, self._pieces)), healed + len(text)
        count = len(self._ids)
        while count and (end > shown or count - 1 in self._inside or not self._has_text(count - 1)):
            count -= 1
            end -= len(self._pieces[count])
        if end < healed:
            return 0, text  # the healed tail itself was not finished: the caller's pending text stays as it was
        return count, text[end - healed :]

    def _has_text(self, index: int) -> bool:
        return self._tokenizer.token_bytes[self._ids[index]] is not None

    def _segments(self, text: str) -> tuple[tuple[Literal["generated", "forced"], str], ...]:
        """The text cut where sampled and forced tokens meet. A character belongs to the token that ends it."""
        healed = len(self.request.prefix_text.decode())
        start, found = 0, list[tuple[Literal["generated", "forced"], str]]()
        ends = accumulate(map(len, self._pieces))
        for is_forced, run in groupby(zip(self._is_forced, ends, strict=True), key=itemgetter(0)):
            end = max(start, min(list(run)[-1][1] - healed, len(text)))
            if end > start:
                found.append(("forced" if is_forced else "generated", text[start:end]))
            start = end
        return tuple(found)

    def _prompt_logprob_list(self) -> tuple[TokenLogprob, ...]:
        start = self.request.params.prompt_logprobs_start
        if start is None:
            return ()
        if start == 0:
            self._prompt_logprobs[0] = TokenLogprob(self.request.token_ids[0], None, ())
        return tuple(self._prompt_logprobs[i] for i in range(start, len(self.request.token_ids)))


def _stop_matcher(params: SamplingParams) -> StopMatcher | RegexStopMatcher | None:
    if params.stop_regex is not None:
        return RegexStopMatcher(params.stop_regex, params.stop)
    return StopMatcher(params.stop) if params.stop else None
