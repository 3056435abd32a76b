"""A real engine on a random model of a few thousand weights and a byte tokenizer: starts in milliseconds."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from lmprog_runtime.cache import CacheConfig, CacheManager, Tiers
from lmprog_runtime.constraint.base import Grammar
from lmprog_runtime.engine import Engine
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.decoder import TorchExecutor
from lmprog_runtime.model.executor import Executor
from lmprog_runtime.model.model_spec import read_spec
from lmprog_runtime.model.tokenizer import Tokenizer
from lmprog_runtime.model.weights import open_weights
from lmprog_runtime.request import Completion, Constraint, GenerateRequest, SamplingParams, ScoreRequest, Sink
from lmprog_runtime.scheduler import Scheduler, SchedulerConfig
from tests.support.byte_tokenizer import FIRST_BYTE, VOCAB, make_byte_tokenizer
from tests.support.tiny_models import make_model

CONTEXT = 256
TINY_VOCAB = VOCAB + 13  # rows that no token of the tokenizer uses, as real models have them
TOKENIZER = make_byte_tokenizer(vocab_size=TINY_VOCAB)
ASCII_ONLY = {token_id: -100.0 for token_id in range(TINY_VOCAB) if not 32 <= token_id - FIRST_BYTE < 127}
"""Bias that keeps a random model from ending, and from bytes that are no text."""


@cache
def tiny_directory() -> Path:
    directory = Path(mkdtemp(prefix="lmprog-tiny-"))
    make_model("llama", vocab_size=TINY_VOCAB, eos_token_id=2).save_pretrained(directory)
    return directory


def tiny_executor(num_slots: int = 1024) -> TorchExecutor:
    spec = read_spec(tiny_directory())
    return TorchExecutor(spec, open_weights(tiny_directory(), spec), num_slots=num_slots, dtype="float32", device="cpu")


def tiny_int8_kv_executor(num_slots: int = 1024) -> CpuExecutor:
    """The C++ one with KV in int8. The library must be there."""
    spec = read_spec(tiny_directory())
    weights = open_weights(tiny_directory(), spec)
    return CpuExecutor(spec, weights, num_slots=num_slots, dtype="float32", threads=1, int8_kv=True)


def no_constraints(constraint: Constraint | None, prefix_text: bytes) -> Grammar:
    raise AssertionError("this engine has no compiler")


@contextmanager
def tiny_engine(
    executor: Executor | None = None,
    *,
    compiler: Any = no_constraints,
    tokenizer: Tokenizer = TOKENIZER,
    cached: bool = True,
    jump_forward: bool = True,
    speculation: bool = True,
    verify_share: float = 0.0,
    tiers: Tiers | None = None,
    **scheduler: Any,
) -> Iterator[Engine]:
    """An engine that checks the accounting of every slot after every step."""
    executor = executor or tiny_executor()
    cache_manager = CacheManager(
        CacheConfig(num_slots=executor.num_slots, enabled=cached, debug_owners=True), tiers=tiers
    )
    settings = {"step_tokens": 64, "max_running": 32, "policy": "lpm", **scheduler}
    engine = Engine(
        executor,
        tokenizer,
        Scheduler(SchedulerConfig(context_length=CONTEXT, **settings), cache_manager),
        cache_manager,
        compiler,
        namespace="tiny",
        context_length=CONTEXT,
        jump_forward=jump_forward,
        speculation=speculation,
        check_every_step=True,
        verify_share=verify_share,
    )
    try:
        yield engine
    finally:
        engine.shutdown()


class Waiter:
    """Collects what one request reports; `result()` blocks for the end and raises what it failed with."""

    def __init__(self) -> None:
        self.deltas: list[Any] = []
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sink = Sink(self.deltas.append, self._ended.put, self._ended.put)

    def result(self, timeout: float = 30.0) -> Any:
        value = self._ended.get(timeout=timeout)
        if isinstance(value, BaseException):
            raise value
        return value


def start(engine: Engine, request: GenerateRequest | ScoreRequest) -> tuple[int, Waiter]:
    waiter = Waiter()
    return engine.submit(request, waiter.sink), waiter


def run(engine: Engine, request: GenerateRequest | ScoreRequest) -> Any:
    return start(engine, request)[1].result()


def run_all(engine: Engine, requests: list[GenerateRequest]) -> list[Completion]:
    """Handed over in one piece, so that they run side by side however busy the machine is."""
    waiters = [Waiter() for _ in requests]
    engine.submit_group([*requests], [waiter.sink for waiter in waiters])
    return [waiter.result() for waiter in waiters]


def prompt(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def greedy(max_tokens: int = 12, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **more)
