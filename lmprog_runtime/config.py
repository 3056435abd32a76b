"""Settings of the local runtime. One frozen dataclass: constructors, command line and server flags are made from it."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass, field
from typing import Any, Literal


def _help(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """What `Runtime(...)`, `lmprog serve` and `lmprog run` accept."""

    model: str = _help("alias, local path, .gguf file or Hugging Face id", "smollm2-135m")
    dtype: str = _help(
        "auto, float32, bfloat16, float16, int8, int4 or gguf (a GGUF file as it is); auto: bfloat16 or float32", "auto"
    )
    device: str = _help("auto, cpu or cuda", "auto")
    executor: Literal["auto", "cpu", "torch", "hf"] = _help(
        "auto, cpu (one C++ call per step), torch or hf (any transformers model)", "auto"
    )
    threads: int | None = _help("CPU threads; default: the number of cores", None)
    max_total_tokens: int | None = _help("slots of the KV pool; default: 65536, or less where memory is short", None)
    kv_cache_dtype: Literal["auto", "int8"] = _help(
        "type of the KV pool: auto is what attention computes in; int8 (cpu executor) takes a little more than half",
        "auto",
    )
    context_length: int | None = _help("longest sequence; default: the model's own", None)
    step_tokens: int = _help("most tokens computed in one step; longer prompts are extended in chunks", 512)
    max_running: int = _help("most requests in one step", 256)
    schedule_policy: str = _help("fcfs, lpm (longest prefix match first) or dfs-weight", "lpm")
    eviction_policy: str = _help("lru, lfu, slru, fifo, priority or cost", "lru")
    page_size: int = _help("tokens per page of the radix tree", 1)
    disable_radix_cache: bool = _help("reuse no prefix", False)
    jump_forward: bool = _help("append what a constraint forces without sampling it", True)
    constraint_backend: Literal["default", "outlines"] = _help(
        "outlines: masks by outlines-core, which refuses what that gets wrong", "default"
    )
    speculation: bool = _help("verify guesses at the next tokens in the same step where that pays", True)
    verify_cache: float = _help("share of cache hits that are computed again and compared", 0.0)
    cache_dir: str | None = _help("keep prefixes on disk here, for the next process", None)
    cache_dir_bytes: int = _help("most bytes of prefixes on disk", 8 * 2**30)
    host_cache_bytes: int = _help("most bytes of prefixes kept in memory beyond the pool; 0: none", 0)
    kv_codec: str = _help("how prefixes are kept beyond the pool: raw (exact), bfloat16 or int8", "raw")
    debug_checks: bool = _help("check the accounting of every slot after every step (slow)", False)

    @classmethod
    def from_keywords(cls, **keywords: Any) -> RuntimeConfig:
        """TypeError for an unknown name, with the nearest known one."""
        known = [f.name for f in dataclasses.fields(cls)]
        for name in keywords:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                guess = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."
                raise TypeError(f"The runtime has no setting {name!r}.{guess}")
        return cls(**keywords)
