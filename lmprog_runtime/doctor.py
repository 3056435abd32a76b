"""`lmprog doctor`: what this machine has, what lmprog makes of it, and how fast it is, in about ten seconds.

With `--bench` also what its limits are, which takes about half a minute more."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.errors import RuntimeFault
from lmprog_runtime.model.cpu_executor import CpuExecutor
from lmprog_runtime.model.executor import load_executor
from lmprog_runtime.model.floor import NUM_SLOTS, arithmetic_dtype, measure_floors
from lmprog_runtime.model.hub import resolve_model
from lmprog_runtime.request import Completion, GenerateRequest, SamplingParams, Sink
from lmprog_runtime.runtime import LocalRuntime

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "fastapi", "uvicorn", "requests")
CPU_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16")
PROMPT_TOKENS, NEW_TOKENS, BATCH = 384, 24, 8

Line = tuple[str, str]


def main(arguments: list[str] | None = None) -> int:
    """Print the report; status 1 when the model cannot run here."""
    parser = argparse.ArgumentParser(prog="lmprog doctor", description=__doc__)
    parser.add_argument("--model", default=RuntimeConfig().model)
    parser.add_argument("--dtype", default=RuntimeConfig().dtype)
    bench_help = "compare the model's steps with the machine's limits, in half a minute more"
    parser.add_argument("--bench", action="store_true", help=bench_help)
    options = parser.parse_args(arguments)
    for name, text in machine():
        print(f"{name:<15}{text}")
    try:
        for name, text in check_model(options.model, options.dtype):
            print(f"{name:<15}{text}", flush=True)
        for name, text in bench(options.model, options.dtype) if options.bench else ():
            print(f"{name:<15}{text}", flush=True)
    except RuntimeFault as error:
        print(f"{'model':<15}{error}")
        return 1
    return 0


def machine() -> Iterator[Line]:
    """Environment, processor and memory."""
    yield "lmprog", f"{importlib.metadata.version('lmprog')}, Python {platform.python_version()}, {platform.platform()}"
    yield "packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    yield "processor", f"{os.cpu_count()} cores, {', '.join(cpu_features()) or 'features unknown'}"
    yield "memory", _memory()
    yield "device", f"cuda: {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "cpu (no CUDA device)"
    yield "copy speed", f"{copy_speed():.1f} GB/s read and write, one thread"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def cpu_features() -> list[str]:
    """Of the features that kernels use, those that this processor has; none where the system does not tell."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return []
    words = next((line.split() for line in info.read_text().splitlines() if line.startswith(("flags", "Features"))), [])
    return [flag for flag in CPU_FLAGS if flag in words]


def _memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * size / 2**30
    return f"{pages * size / 2**30:.1f} GiB, {free:.1f} GiB free"


def copy_speed(megabytes: int = 128) -> float:
    """Gigabytes read and written per second by a copy: the limit of decoding one sequence on a CPU."""
    source = torch.ones(megabytes * 2**20, dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)  # touches every page first
    started = time.perf_counter()
    for _ in range(3):
        target.copy_(source)
    return 2 * 3 * source.numel() / (time.perf_counter() - started) / 1e9


def check_model(name: str, dtype: str) -> Iterator[Line]:
    """Load a model, look at how it will run, and time a prompt, one answer, and eight answers side by side. Without
    guesses, which come true too often in the loops that such prompts lead to."""
    started = time.perf_counter()
    runtime = LocalRuntime.start(model=name, dtype=dtype, speculation=False)
    try:
        info = runtime.info()
        loaded = time.perf_counter() - started
        yield "model", f"{info['model']} ({info['revision'][:12]}), loaded in {loaded:.1f} s"
        yield "runs on", f"executor {info['executor']}, {info['dtype']}, {info['device']}"
        yield "context", f"{info['context_length']} tokens, KV pool of {info['max_total_tokens']}"
        ids, others = ([next(iter(runtime.tokenizer.encode(text)))] * PROMPT_TOKENS for text in "ab")
        _run(runtime, [others], 2)  # makes what is made lazily, and touches the memory of a long step
        seconds = _run(runtime, [ids], 1)
        yield "prompt", f"{PROMPT_TOKENS / seconds:.0f} tokens/s"
        yield "one answer", f"{NEW_TOKENS / _run(runtime, [ids[:8]], NEW_TOKENS):.0f} tokens/s"
        batch = [[*ids[:8], *runtime.tokenizer.encode(str(n))] for n in range(BATCH)]
        yield f"{BATCH} answers", f"{BATCH * NEW_TOKENS / _run(runtime, batch, NEW_TOKENS):.0f} tokens/s together"
        runtime.cache.check()
        yield "accounting", "every slot of the pool has one owner"
    finally:
        runtime.close()


def bench(name: str, dtype: str) -> Iterator[Line]:
    """Memory bandwidth and multiply-add rate of this machine, and the share of them that the model's steps reach."""
    executor = load_executor(resolve_model(name), dtype=dtype, num_slots=NUM_SLOTS)
    if not isinstance(executor, CpuExecutor):
        yield "bench", f"nothing to compare: the limits are those of the cpu executor, not of {executor.name}"
        return
    floors, speeds = measure_floors(executor)
    threads = executor.decoder.threads
    yield "memory read", f"{floors.bytes_per_second / 1e9:.1f} GB/s, {threads} threads"
    arithmetic = f"{floors.flops_per_second / 1e9:.0f} GFLOP/s in {arithmetic_dtype(executor)}"
    yield "multiply-adds", f"{arithmetic}, {threads} threads, {executor.decoder.level}"
    for speed in speeds:
        text = f"{speed.tokens_per_second:.0f} tokens/s in {executor.dtype}"
        yield speed.name, f"{text}, {speed.share:.0%} of what {speed.limit} allows"


def _run(runtime: LocalRuntime, prompts: list[list[int]], new_tokens: int) -> float:
    """Seconds for some prompts side by side, without the cache."""
    params = SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True)
    waits = [_Wait() for _ in prompts]
    started = time.perf_counter()
    requests = [GenerateRequest(ids, params, use_cache=False) for ids in prompts]
    runtime.engine.submit_group([*requests], [wait.sink for wait in waits])
    for wait in waits:
        wait.result()
    return time.perf_counter() - started


class _Wait:
    def __init__(self) -> None:
        self._ended = threading.Event()
        self._value: Completion | BaseException | None = None
        self.sink = Sink(delta=lambda _: None, done=self._end, fail=self._end)

    def _end(self, value: Completion | BaseException) -> None:
        self._value = value
        self._ended.set()

    def result(self) -> None:
        self._ended.wait()
        if isinstance(self._value, BaseException):
            raise self._value


if __name__ == "__main__":
    sys.exit(main())
