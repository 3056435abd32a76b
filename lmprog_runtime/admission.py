"""What happens to requests before the engine thread sees them: range checks, and waiting for their group."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.params import check_token_ids, validate
from lmprog_runtime.request import GenerateRequest, ScoreRequest

Job = TypeVar("Job")


def check_request(request: GenerateRequest | ScoreRequest, vocab_size: int) -> None:
    """RequestRefused in one sentence for what can be seen without the model: empty, out of range, contradictory."""
    if not request.token_ids:
        raise RequestRefused("The prompt is empty; give at least one token of text before generating.")
    check_token_ids("token_ids", tuple(request.token_ids), vocab_size)
    if isinstance(request, GenerateRequest):
        validate(request.params, vocab_size)
        _check_prompt_logprobs(request)
        if request.params.finish is not None and request.constraint is None:
            raise RequestRefused("finish='close' is for constrained outputs: there is nothing to close without one.")
    else:
        _check_choices(request, vocab_size)


def needs_compiling(request: GenerateRequest) -> bool:
    """Whether something has to be made of the request that may take a while: a grammar, or a stop automaton."""
    has_grammar = request.constraint is not None or bool(request.prefix_text)
    return has_grammar or request.params.stop_regex is not None


def _check_prompt_logprobs(request: GenerateRequest) -> None:
    start, length = request.params.prompt_logprobs_start, len(request.token_ids)
    if start is not None and not 0 <= start < length:
        raise RequestRefused(f"prompt_logprobs_start is {start}; the prompt's positions are 0 to {length - 1}.")


def _check_choices(request: ScoreRequest, vocab_size: int) -> None:
    if not request.choices:
        raise RequestRefused("The list of choices is empty; give at least one.")
    for index, choice in enumerate(request.choices):
        if not choice:
            raise RequestRefused(f"choices[{index}] has no tokens; a choice must add at least one to the prompt.")
        check_token_ids(f"choices[{index}]", tuple(choice), vocab_size)


class Group(Generic[Job]):
    """Counts a group's members in, from several threads, so that they can be admitted together."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self._missing, self._lock = len(ids), threading.Lock()
        self._ready: list[tuple[int, Job]] = []

    def arrive(self, ready: tuple[int, Job] | None) -> list[tuple[int, Job]] | None:
        """The members that can be admitted, once the last one is here."""
        with self._lock:
            self._missing -= 1
            if ready is not None:
                self._ready.append(ready)
            return sorted(self._ready, key=lambda item: item[0]) if not self._missing else None
