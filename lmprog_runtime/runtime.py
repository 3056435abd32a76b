"""A model, ready to run: puts its files, executor, tokenizer, cache, scheduler, constraints and engine together."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

from lmprog_runtime.cache import CacheConfig, CacheManager, TierConfig, Tiers
from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.constraint.base import Grammar
from lmprog_runtime.constraint.compiler import compile_constraint, prefix_constraint, warm_up
from lmprog_runtime.constraint.outlines_backend import OutlinesCompiler
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.engine import ConstraintCompiler, Engine
from lmprog_runtime.inspection import CacheView
from lmprog_runtime.model.chat import ChatTemplate
from lmprog_runtime.model.executor import Executor, load_executor
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.model.model_spec import ModelSpec
from lmprog_runtime.model.tokenizer import Tokenizer, load_tokenizer
from lmprog_runtime.request import Constraint, GenerateRequest, SamplingParams, Sink
from lmprog_runtime.scheduler import CascadeRule, Scheduler, SchedulerConfig

T = TypeVar("T")


class LocalRuntime:
    """One loaded model and its engine. `close()` ends the engine thread and gives the memory back."""

    def __init__(self, files: ModelFiles, executor: Executor, tokenizer: Tokenizer, config: RuntimeConfig) -> None:
        self.files, self.executor, self.tokenizer, self.config = files, executor, tokenizer, config
        self.chat = ChatTemplate(files.chat_template, tokenizer)
        context = min(config.context_length or executor.context_length, executor.context_length)
        cache = CacheManager(_cache_config(config, executor.num_slots), tiers=_tiers(config, executor))
        self.engine = Engine(
            executor,
            tokenizer,
            Scheduler(_scheduler_config(config, context, cascade_rule(executor)), cache),
            cache,
            constraint_compiler(tokenizer, config.constraint_backend),
            namespace=files.revision,
            context_length=context,
            jump_forward=config.jump_forward,
            speculation=config.speculation,
            check_every_step=config.debug_checks,
            verify_share=config.verify_cache,
        )
        self.cache = CacheView(self.engine)

    @classmethod
    def start(cls, **settings: Any) -> LocalRuntime:
        """Load a model and start its engine. `settings` are the fields of RuntimeConfig; TypeError for others."""
        return cls.from_config(RuntimeConfig.from_keywords(**settings))

    @classmethod
    def from_config(cls, config: RuntimeConfig) -> LocalRuntime:
        files = resolve_model(config.model)
        executor = load_executor(
            files,
            kind=config.executor,
            dtype=config.dtype,
            device=config.device,
            threads=config.threads,
            num_slots=config.max_total_tokens,
            kv_cache_dtype=config.kv_cache_dtype,
        )
        return cls(files, executor, load_tokenizer(files), config)

    def warm(self, text: str) -> None:
        """Compute the KV of a plain prompt, and wait until it is in the cache."""
        ids = [*self.tokenizer.bos_ids, *self.tokenizer.encode(text)]
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        sink = Sink(lambda _: None, lambda _: ended.put(None), ended.put)
        self.engine.submit(GenerateRequest(ids, SamplingParams(max_tokens=1, temperature=0.0)), sink)
        error = ended.get()
        if error is not None:
            raise error

    def flush_cache(self) -> int:
        """Drop every prefix that nothing is using. Returns the number of tokens dropped."""
        return self.on_engine(self.engine.cache.flush)

    def on_engine(self, function: Callable[[], T]) -> T:
        """Run a function on the engine thread between two steps and wait for its result."""
        return self.engine.call(function).result()

    def statistics(self) -> dict[str, Any]:
        """Counters and gauges of engine, scheduler and cache."""
        return self.on_engine(self.read_statistics)

    def read_statistics(self) -> dict[str, Any]:
        """`statistics` for callers on the engine thread (`engine.call`)."""
        engine, scheduler = self.engine, self.engine.scheduler
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "steps": engine.steps,
            "failed_steps": engine.failed_steps,
            "cache_violations": engine.cache_violations,
            "refused_constraints": engine.refused_constraints,
            "leased_tokens": engine.cache.tree.leased,
            "computed_tokens": scheduler.counters.computed_tokens,
            "generated_tokens": engine.results.generated_tokens,
            "drafted_tokens": engine.results.drafted_tokens,
            "accepted_tokens": engine.results.accepted_tokens,
            "preemptions": scheduler.counters.preemptions,
            "radix_cache": self.cache.read(),
        }

    def info(self) -> dict[str, Any]:
        """What is running, for people and programs."""
        executor = self.executor
        return {
            "model": self.config.model,
            "revision": self.files.revision,
            "executor": executor.name,
            "dtype": executor.dtype,
            "device": executor.device,
            "vocab_size": executor.vocab_size,
            "context_length": self.engine.context_length,
            "max_total_tokens": executor.num_slots,
            "kv_cache_dtype": executor.kv_dtype,
        }

    def close(self) -> None:
        """End the engine, and write to the cache directory what is still on its way there. Idempotent."""
        self.engine.shutdown()
        self.engine.cache.close()


def constraint_compiler(tokenizer: Tokenizer, backend: str = "default") -> ConstraintCompiler:
    """Compiles the constraints of requests to grammars over this tokenizer's vocabulary."""
    vocabulary = Vocabulary(tokenizer.token_bytes, tokenizer.eos_ids, tokenizer.special_ids, tokenizer.encode)
    if backend == "outlines":
        return OutlinesCompiler(vocabulary)
    warm_up(vocabulary)

    def compile_request(constraint: Constraint | None, prefix_text: bytes) -> Grammar:
        grammar = None if constraint is None else compile_constraint(constraint, vocabulary)
        if prefix_text:
            return prefix_constraint(prefix_text, grammar, vocabulary)
        assert grammar is not None, "a request without constraint and held-back text needs no grammar"
        return grammar

    return compile_request


def _tiers(config: RuntimeConfig, executor: Executor) -> Tiers | None:
    if config.cache_dir is None and not config.host_cache_bytes:
        return None
    settings = TierConfig(
        host_bytes=config.host_cache_bytes,
        directory=config.cache_dir,
        file_bytes=config.cache_dir_bytes,
        codec=config.kv_codec,
        write_on_hit=None if config.cache_dir is None else 0,  # files outlive the process: keep what was computed
    )
    return Tiers(settings, executor)


def _cache_config(config: RuntimeConfig, num_slots: int) -> CacheConfig:
    return CacheConfig(
        num_slots=num_slots,
        page_size=config.page_size,
        policy=config.eviction_policy,
        enabled=not config.disable_radix_cache,
        debug_owners=config.debug_checks,
    )


def cascade_rule(executor: Executor) -> CascadeRule | None:
    """When chunks that share a prefix attend to it together; None where the model's shape is not known.

    From `scripts/bench_cascade.py --grid`. Decodes on the CPU executor gain at any length, and requests with several
    new tokens at long ones; prompts of tens of new tokens, which compute more than they read, would lose. In plain
    torch it costs 18 ms a step, whatever is saved. Parts end where the CPU executor cuts the keys of every row, so the
    logits are equal bit for bit.
    """
    spec: ModelSpec | None = getattr(executor, "spec", None)
    if spec is None:
        return None
    if executor.name != "cpu":
        return CascadeRule(min_saved=4096, alignment=256)
    group = spec.num_heads // spec.num_kv_heads
    return CascadeRule(max_states=12, keys_per_state=40, query_group=group, alignment=256)


def _scheduler_config(config: RuntimeConfig, context_length: int, cascade: CascadeRule | None) -> SchedulerConfig:
    return SchedulerConfig(
        context_length=context_length,
        step_tokens=config.step_tokens,
        max_running=config.max_running,
        policy=config.schedule_policy,
        cascade=cascade,
    )
