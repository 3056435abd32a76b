"""Structured programs for language models.

    import lmprog

    @lmprog.function
    def capital(s, country):
        s += f"The capital of {country} is" + lmprog.gen("city", max_tokens=8, stop=".")

    print(capital.run(country="France", backend=lmprog.Runtime("smollm2-135m"))["city"])

Importing this package is quick and loads no model library: backends load theirs when they are first named.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

from lmprog.backends.base import Backend, Usage
from lmprog.backends.scripted import ScriptedBackend, ScriptedCall
from lmprog.beam import beam
from lmprog.choices import (
    ChoicesMethod,
    greedy_token_selection,
    per_byte,
    sum_logprob,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from lmprog.errors import (
    BackendError,
    BackendUnavailable,
    BlockingRead,
    Cancelled,
    ConstraintInvalid,
    ConstraintTooLarge,
    ConstraintUnreachable,
    ConstraintUnsupported,
    EngineFailed,
    IncompleteOutput,
    InvalidArgument,
    InvalidOutput,
    LmprogError,
    MissingDependency,
    ModelNotFound,
    ModelUnsupported,
    NoBackend,
    NotTraceable,
    PromptTooLong,
    ReplayMismatch,
    RequestRefused,
    RunTimeout,
    UnencodableText,
    UnknownParameter,
    UnknownVariable,
    UnsupportedParameter,
)
from lmprog.few_shot import few_shot, few_shot_turns
from lmprog.forks import Branches
from lmprog.language import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    role,
    select,
    special,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from lmprog.program import Program, Run, function
from lmprog.reasoning import Reasoning, separate_reasoning
from lmprog.record import Record
from lmprog.sampling import Sampling
from lmprog.settings import flush_cache, get_server_info, set_default_backend, use_backend
from lmprog.state import State
from lmprog.tools import Toolbox, ToolCall, use_tools

if TYPE_CHECKING:
    from lmprog.backends.anthropic import Anthropic
    from lmprog.backends.litellm import LiteLLM
    from lmprog.backends.local import Runtime
    from lmprog.backends.native import RuntimeEndpoint
    from lmprog.backends.openai import OpenAI
    from lmprog.backends.replay import RecordingBackend, ReplayBackend
    from lmprog.backends.speculation import SpeculativeBackend
    from lmprog.compat.sglang.engine import Engine
    from lmprog.graph import Graph
    from lmprog.report import export_spans, render_html, render_tree, totals, trace_events
    from lmprog.schema import describe, from_json, partial_json, to_json_schema, tool_schema

__version__ = "0.1.0"

_LAZY = {  # loaded when first named
    "Anthropic": "lmprog.backends.anthropic",
    "Engine": "lmprog.compat.sglang.engine",
    "Graph": "lmprog.graph",
    "LiteLLM": "lmprog.backends.litellm",
    "OpenAI": "lmprog.backends.openai",
    "RecordingBackend": "lmprog.backends.replay",
    "ReplayBackend": "lmprog.backends.replay",
    "Runtime": "lmprog.backends.local",
    "RuntimeEndpoint": "lmprog.backends.native",
    "SpeculativeBackend": "lmprog.backends.speculation",
    **dict.fromkeys(("export_spans", "render_html", "render_tree", "totals", "trace_events"), "lmprog.report"),
    **dict.fromkeys(("describe", "from_json", "partial_json", "to_json_schema", "tool_schema"), "lmprog.schema"),
}

__all__ = [
    "Anthropic",
    "Backend",
    "BackendError",
    "BackendUnavailable",
    "BlockingRead",
    "Branches",
    "Cancelled",
    "ChoicesMethod",
    "ConstraintInvalid",
    "ConstraintTooLarge",
    "ConstraintUnreachable",
    "ConstraintUnsupported",
    "Engine",
    "EngineFailed",
    "Graph",
    "IncompleteOutput",
    "InvalidArgument",
    "InvalidOutput",
    "LiteLLM",
    "LmprogError",
    "MissingDependency",
    "ModelNotFound",
    "ModelUnsupported",
    "NoBackend",
    "NotTraceable",
    "OpenAI",
    "Program",
    "PromptTooLong",
    "Reasoning",
    "Record",
    "RecordingBackend",
    "ReplayBackend",
    "ReplayMismatch",
    "RequestRefused",
    "Run",
    "RunTimeout",
    "Runtime",
    "RuntimeEndpoint",
    "Sampling",
    "ScriptedBackend",
    "ScriptedCall",
    "SpeculativeBackend",
    "State",
    "ToolCall",
    "Toolbox",
    "UnencodableText",
    "UnknownParameter",
    "UnknownVariable",
    "UnsupportedParameter",
    "Usage",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "beam",
    "describe",
    "export_spans",
    "few_shot",
    "few_shot_turns",
    "flush_cache",
    "from_json",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "partial_json",
    "per_byte",
    "render_html",
    "render_tree",
    "role",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "special",
    "sum_logprob",
    "system",
    "system_begin",
    "system_end",
    "to_json_schema",
    "token_length_normalized",
    "tool_schema",
    "totals",
    "trace_events",
    "unconditional_likelihood_normalized",
    "use_backend",
    "use_tools",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        close = difflib.get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'lmprog' has no attribute {name!r}{hint}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
