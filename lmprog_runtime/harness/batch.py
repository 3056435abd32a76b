"""Many requests on one engine: submitted at once, so that the scheduler can order them for reuse; answers in order."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from lmprog_runtime.engine import Engine
from lmprog_runtime.request import GenerateRequest, ScoreRequest, Sink


def run_batch(
    engine: Engine, requests: Sequence[GenerateRequest | ScoreRequest], *, description: str, quiet: bool = False
) -> list[Any]:
    """Completions or score results, in the order of the requests. Raises the first error, with what has come lost."""
    ended: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def sink(index: int) -> Sink:
        return Sink(lambda _: None, lambda done: ended.put((index, done)), lambda error: ended.put((index, error)))

    engine.submit_group(list(requests), [sink(index) for index in range(len(requests))])
    results: list[Any] = [None] * len(requests)
    for _ in tqdm(range(len(requests)), desc=description, disable=quiet, unit="request"):
        index, result = ended.get()
        if isinstance(result, BaseException):
            raise result
        results[index] = result
    return results
