"""Sends conversations to a target, as they come or so many at a time, and gathers how each request went."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from lmprog_runtime.bench.conversation import Conversation
from lmprog_runtime.bench.outcome import Outcome
from lmprog_runtime.bench.targets import Target

Encode = Callable[[str], Sequence[int]]


class Load(NamedTuple):
    """request_rate: conversations started per second, with exponential gaps (a Poisson process); inf: all at once.
    max_concurrency: most conversations under way; None: no limit. A conversation that waits for its place has not
    started yet, as in SGLang's bench_serving."""

    request_rate: float = float("inf")
    max_concurrency: int | None = None
    seed: int = 1


def gaps(load: Load, count: int) -> list[float]:
    """Seconds to wait after each start; the first conversation starts at once."""
    if load.request_rate == float("inf"):
        return [0.0] * count
    return [float(gap) for gap in np.random.default_rng(load.seed).exponential(1.0 / load.request_rate, count)]


def run_load(
    target: Target, conversations: Sequence[Conversation], load: Load, *, encode: Encode, quiet: bool = False
) -> tuple[list[Outcome], float]:
    """Outcomes in the order of conversations and turns, and seconds from the first start to the last end."""
    started = time.perf_counter()
    workers = min(load.max_concurrency or len(conversations), len(conversations))
    turns = sum(len(conversation.turns) for conversation in conversations)
    with (
        tqdm(total=turns, unit="request", disable=quiet) as bar,
        ThreadPoolExecutor(workers, thread_name_prefix="bench") as pool,
    ):
        running: list[Future[list[Outcome]]] = []
        for conversation, gap in zip(conversations, gaps(load, len(conversations)), strict=True):
            running.append(pool.submit(_converse, target, conversation, encode, bar))
            time.sleep(gap)
        found = [outcome for future in running for outcome in future.result()]
    return found, time.perf_counter() - started


def _converse(target: Target, conversation: Conversation, encode: Encode, bar: Any) -> list[Outcome]:
    """One turn after the other; after a failed one the others have no prompt, and fail as well."""
    outcomes: list[Outcome] = []
    for outcome in _turns(target, conversation, encode):
        outcomes.append(outcome)
        bar.update()
    return outcomes


def _turns(target: Target, conversation: Conversation, encode: Encode) -> Iterator[Outcome]:
    prompt: list[int] = []
    failed = ""
    for turn in conversation.turns:
        prompt += turn.token_ids
        if failed:
            yield Outcome(len(prompt), error=failed)
            continue
        outcome = target.send(prompt, turn.output_len)
        prompt += outcome.token_ids or encode(outcome.text)
        failed = f"An earlier turn failed: {outcome.error}" if outcome.error else ""
        yield outcome
