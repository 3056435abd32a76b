"""A real runtime on the random model of `tiny_engine`: for programs, and for what needs more than an engine."""

from __future__ import annotations

from typing import Any

from lmprog_runtime.config import RuntimeConfig
from lmprog_runtime.model.files import ModelFiles
from lmprog_runtime.runtime import LocalRuntime
from tests.support.byte_tokenizer import CHATML
from tests.support.tiny_engine import CONTEXT, TOKENIZER, tiny_directory, tiny_executor


def tiny_local(slots: int = 2048, **settings: Any) -> LocalRuntime:
    """Settings are those of RuntimeConfig; the accounting of every slot is checked after every step."""
    files = ModelFiles("tiny", tiny_directory(), "tiny", CONTEXT, CHATML, None)
    config = RuntimeConfig(**{"debug_checks": True, "step_tokens": 64, "max_running": 32, **settings})
    return LocalRuntime(files, tiny_executor(slots), TOKENIZER, config)
