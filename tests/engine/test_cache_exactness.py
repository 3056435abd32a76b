"""A real forward pass (tiny, float32) under scheduler, cache and tiers: the same tokens however they came about.

With the torch executor, and with the C++ one over a pool in int8.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from lmprog_runtime.cache import CacheConfig, CacheManager, TierConfig, Tiers
from lmprog_runtime.model.executor import Executor
from lmprog_runtime.ops.native import is_native_available
from lmprog_runtime.scheduler import CascadeRule, Scheduler, SchedulerConfig, Sequence, TokenTree
from tests.support.tiny_engine import CONTEXT, TINY_VOCAB, tiny_executor, tiny_int8_kv_executor

NEW = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on matrices this small only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Loop:
    """The engine's loop, greedy."""

    def __init__(
        self,
        make_executor: Callable[[int], Executor],
        num_slots: int = 1024,
        tiers: TierConfig | None = None,
        **config: object,
    ) -> None:
        self.executor = make_executor(num_slots)
        below = None if tiers is None else Tiers(tiers, self.executor)
        self.cache = CacheManager(CacheConfig(num_slots=num_slots, debug_owners=True), tiers=below)
        settings: dict[str, object] = {"context_length": CONTEXT, "step_tokens": 64, "max_running": 16, **config}
        self.scheduler = Scheduler(SchedulerConfig(**settings), self.cache)  # type: ignore[arg-type]

    def run(self, *prompts: list[int], new: int = NEW, **fields: object) -> list[list[int]]:
        jobs = [Sequence(list(prompt), len(prompt), ("tiny",), new, **fields) for prompt in prompts]  # type: ignore[arg-type]
        self.scheduler.add(jobs)
        while self.scheduler.has_work():
            self.step()
        self.cached = [job.cached_tokens for job in jobs]
        return [job.token_ids[job.prompt_length :] for job in jobs]

    def step(self) -> None:
        step = self.scheduler.schedule()
        assert step is not None
        logits = self.executor.step(step.batch)
        self.scheduler.complete(step)
        self.cache.check()
        for output in step.outputs:
            sequence = output.sequence
            if output.first_position + output.row_count == len(sequence.token_ids):
                token = int(logits[output.row_start + output.row_count - 1].argmax())
                self.scheduler.append(sequence, [token])
                if len(sequence.token_ids) >= sequence.token_limit:
                    self.scheduler.finish(sequence)


MakeLoop = Callable[..., Loop]


@pytest.fixture(scope="module", params=["torch", "int8 KV"])
def make_loop(request: pytest.FixtureRequest) -> MakeLoop:
    if request.param == "torch":
        return partial(Loop, tiny_executor)
    if not is_native_available():
        pytest.skip("the C++ library does not run here")
    return partial(Loop, tiny_int8_kv_executor)


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, TINY_VOCAB), k=length)


PROMPTS = [prompt(20 + 3 * seed, seed) for seed in range(30)]


@pytest.fixture(scope="module")
def cold(make_loop: MakeLoop) -> list[list[int]]:
    """Each prompt alone, in a fresh pool."""
    loop = make_loop()
    outputs = []
    for tokens in PROMPTS:
        loop.cache.flush()
        outputs += loop.run(tokens, use_cache=False)
    return outputs


def test_warm_flushed_and_batched_runs_repeat_the_cold_one(make_loop: MakeLoop, cold: list[list[int]]) -> None:
    loop = make_loop(num_slots=4096)
    assert loop.run(*PROMPTS) == cold
    assert loop.run(*PROMPTS) == cold
    assert loop.cached == [len(tokens) - 1 for tokens in PROMPTS]
    loop.cache.flush()
    assert [loop.run(tokens)[0] for tokens in PROMPTS] == cold


def test_preempted_runs_repeat_the_cold_one(make_loop: MakeLoop, cold: list[list[int]]) -> None:
    loop = make_loop(num_slots=160, decode_reserve=0)
    assert loop.run(*PROMPTS) == cold
    assert loop.scheduler.counters.preemptions > 0


def test_a_restart_from_files_repeats_the_cold_one(make_loop: MakeLoop, cold: list[list[int]], tmp_path: Path) -> None:
    tiers = TierConfig(directory=tmp_path, block_tokens=16, write_on_hit=0)
    first = make_loop(num_slots=4096, tiers=tiers)
    first.run(*PROMPTS)
    first.cache.close()
    second = make_loop(num_slots=4096, tiers=tiers)
    assert second.run(*PROMPTS) == cold
    assert second.cached == [min(len(tokens) - 1, len(tokens) // 16 * 16) for tokens in PROMPTS]  # in whole blocks
    second.cache.close()


def program(number: int) -> list[list[int]]:
    """Five branches on one trunk."""
    trunk = prompt(60, 100 + number)
    return [trunk + prompt(5, 200 + 10 * number + branch) for branch in range(5)]


@pytest.fixture(scope="module")
def alone(make_loop: MakeLoop) -> list[list[list[int]]]:
    loop = make_loop()
    return [[loop.run(branch, new=5, use_cache=False)[0] for branch in program(number)] for number in range(10)]


@pytest.mark.parametrize("cascade", [None, CascadeRule(alignment=16)])
def test_forked_programs_repeat_the_cold_ones(
    make_loop: MakeLoop, cascade: CascadeRule | None, alone: list[list[list[int]]]
) -> None:
    loop = make_loop(cascade=cascade)
    for number in range(10):
        assert loop.run(*program(number), new=5) == alone[number]
        assert loop.cached[0] <= 2  # programs may begin alike by chance
        assert loop.cached[1:] == [60] * 4
        assert loop.run(*program(number), new=5) == alone[number]
        assert loop.cached == [64] * 5


def test_forked_programs_repeat_the_cold_ones_flushed_preempted_and_restarted(
    make_loop: MakeLoop, alone: list[list[list[int]]], tmp_path: Path
) -> None:
    flushed, crowded = make_loop(), make_loop(num_slots=84, decode_reserve=0)
    tiers = TierConfig(directory=tmp_path, block_tokens=16, write_on_hit=0)
    first = make_loop(tiers=tiers)
    for number in range(10):
        flushed.cache.flush()
        assert flushed.run(*program(number), new=5) == alone[number]
        assert crowded.run(*program(number), new=5) == alone[number]
        first.run(*program(number), new=5)
    assert crowded.scheduler.counters.preemptions > 0
    first.cache.close()
    second = make_loop(tiers=tiers)
    for number in range(10):
        assert second.run(*program(number), new=5) == alone[number]
        assert min(second.cached) >= 48, "whole blocks of the trunk come from the files"
    second.cache.close()


def test_scores_of_a_token_tree_equal_those_of_plain_prompts(make_loop: MakeLoop) -> None:
    prefix, choices = prompt(40, 7), [[5, 6, 7], [5, 6, 9], [5, 8], [11]]
    tree = TokenTree((5, 6, 7, 9, 8, 11), (-1, 0, 1, 1, 0, -1))
    loop = make_loop()
    sequence = Sequence(list(prefix), 40, ("tiny",), 0, tree=tree)
    loop.scheduler.add(sequence)
    step = loop.scheduler.schedule()
    assert step is not None
    [output] = step.outputs
    logits = loop.executor.step(step.batch)[output.row_start : output.row_start + output.row_count]
    ends = {(5, 6, 7): 3, (5, 6, 9): 4, (5, 8): 5, (11,): 6}
    for choice in choices:
        plain = make_loop()
        job = Sequence(prefix + choice, 40 + len(choice), ("tiny",), 1)
        plain.scheduler.add(job)
        alone = plain.scheduler.schedule()
        assert alone is not None
        expected = plain.executor.step(alone.batch)[-1]
        assert torch.allclose(logits[ends[tuple(choice)]], expected, atol=1e-4)
