"""Random faults, cancels, time limits and readers at random moments: every read ends, nothing is left behind."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lmprog import BackendUnavailable, Cancelled, RunTimeout, ScriptedBackend
from tests.support.language import PROGRAMS, no_threads_left

pytestmark = pytest.mark.timeout(60)
EXPECTED = (RuntimeError, BackendUnavailable, Cancelled, RunTimeout)


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def one_run(seed: int) -> str:
    """One program with a random mishap. Returns how it ended."""
    chance = random.Random(seed)
    program = chance.choice(PROGRAMS)
    faults: dict[int, BaseException] = {}
    if chance.random() < 0.4:
        kind = chance.choice([RuntimeError, BackendUnavailable])
        faults[chance.randint(1, 8)] = kind(f"fault of {seed}")
    backend = ScriptedBackend(
        lambda call: f" n{call.number}",
        scores=lambda call: dict.fromkeys(call.choices, -1.0),
        errors=faults,
        delay=lambda _: chance.choice([0, 0, 0.0003, 0.002]),
        token_delay=chance.choice([0, 0.0002]),
    )
    options: dict[str, Any] = {"stream": chance.random() < 0.5, "retries": chance.choice([0, 0, 1])}
    if chance.random() < 0.3:
        options["timeout"] = chance.choice([0.0005, 0.003, 0.01])
    outcome = _outcome(program, backend, chance, options)
    until = time.monotonic() + 20
    while (backend.open_streams or backend.running) and time.monotonic() < until:
        time.sleep(0.0005)  # a streaming body may still be on its way out
    assert (backend.open_streams, backend.running) == (0, 0), (seed, program.name, options, outcome)
    return outcome


def _outcome(program: Any, backend: ScriptedBackend, chance: random.Random, options: dict[str, Any]) -> str:
    try:
        state = program.run(backend=backend, **options)
    except EXPECTED as error:
        return type(error).__name__
    if chance.random() < 0.3:
        time.sleep(chance.choice([0, 0.0005, 0.002]))
        state.cancel()
    errors = []
    for read in (state.text, lambda: "".join(state.text_iter()), state.messages, lambda: state.ret_value):
        start = time.monotonic()
        try:
            read()
        except EXPECTED as error:
            errors.append(error)
        assert time.monotonic() - start < 30
    assert len(set(map(id, errors))) <= 1
    return type(errors[0]).__name__ if errors else "well"


@pytest.mark.usefixtures("_eager_threads")
def test_random_mishaps() -> None:
    outcomes: list[str] = []
    failures: list[BaseException] = []

    def work(part: int) -> None:
        try:
            for seed in range(part, 240, 4):
                outcomes.append(one_run(seed))
        except BaseException as error:
            failures.append(error)

    with no_threads_left():
        threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert {"well", "RuntimeError", "Cancelled", "RunTimeout"} <= set(outcomes)
