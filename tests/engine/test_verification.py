"""Proof mode: hits are computed again and agree; a wrong KV is found; files let a new process go on where one ended."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from lmprog_runtime.cache import TierConfig, Tiers
from lmprog_runtime.engine import Engine
from lmprog_runtime.ops.native import is_native_available
from lmprog_runtime.request import GenerateRequest
from tests.support.tiny_engine import greedy, prompt, run, tiny_engine, tiny_executor, tiny_int8_kv_executor

TEXT = "a prefix that several requests share, and "


def _wait_for_checks(engine: Engine, count: int) -> None:
    assert engine.verifier is not None
    deadline = time.monotonic() + 20
    while engine.verifier.report.checked < count and time.monotonic() < deadline:
        time.sleep(0.01)


def test_hits_are_computed_again_and_agree() -> None:
    with tiny_engine(verify_share=1.0) as engine:
        for ending in ("one", "two", "three"):
            run(engine, GenerateRequest(prompt(TEXT + ending), greedy()))
        _wait_for_checks(engine, 2)
        assert engine.verifier is not None
        report = engine.verifier.report
    assert (report.checked, report.mismatches, report.failed) == (2, 0, 0)
    assert report.max_difference < 1e-3


@pytest.mark.skipif(not is_native_available(), reason="the C++ library does not run here")
def test_hits_on_int8_kv_agree_to_the_last_bit() -> None:
    """A recomputation writes the same integers: what was cached is not a rounding of what it stands for."""
    with tiny_engine(tiny_int8_kv_executor(), verify_share=1.0) as engine:
        for ending in ("one", "two", "three"):
            run(engine, GenerateRequest(prompt(TEXT + ending), greedy()))
        _wait_for_checks(engine, 2)
        assert engine.verifier is not None
        report = engine.verifier.report
    assert (report.checked, report.mismatches, report.failed, report.max_difference) == (2, 0, 0, 0.0)


def test_a_wrong_kv_is_found(caplog: pytest.LogCaptureFixture) -> None:
    executor = tiny_executor()
    with tiny_engine(executor, verify_share=1.0) as engine:
        run(engine, GenerateRequest(prompt(TEXT), greedy(1)))

        def corrupt() -> None:
            slots = np.arange(executor.num_slots, dtype=np.int32)
            executor.write_kv(slots, executor.read_kv(slots)[::-1].copy())

        engine.call(corrupt).result()
        run(engine, GenerateRequest(prompt(TEXT + "x"), greedy()))
        _wait_for_checks(engine, 1)
        assert engine.verifier is not None
        assert engine.verifier.report.mismatches == 1
        (sentence,) = engine.verifier.report.worst
    assert "differs by" in sentence
    logged = [record for record in caplog.records if record.name == "lmprog.verify"]
    assert [(record.levelname, record.message) for record in logged] == [("ERROR", sentence)]


@pytest.mark.parametrize("jump", [True, False])
def test_no_verification_costs_nothing(jump: bool) -> None:
    with tiny_engine(jump_forward=jump) as engine:
        run(engine, GenerateRequest(prompt(TEXT), greedy()))
        assert engine.verifier is None
        assert engine.steps == 12


def test_a_new_process_reuses_what_the_last_one_computed(tmp_path: Path) -> None:
    ids = prompt(TEXT * 4)
    results = []
    for _ in range(2):
        executor = tiny_executor()
        tiers = Tiers(TierConfig(directory=tmp_path, block_tokens=16, write_on_hit=0), executor)
        with tiny_engine(executor, tiers=tiers) as engine:
            results.append(run(engine, GenerateRequest(ids, greedy())))
        engine.cache.close()
    first, second = results
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens >= len(ids) - 16
    assert second.token_ids == first.token_ids
