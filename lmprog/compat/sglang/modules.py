"""Which modules the stand-in for sglang has, and where each of their names comes from. Loaded when first imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HERE = "lmprog.compat.sglang"
_LANGUAGE = {
    name: f"{_HERE}.words:{name}"
    for name in (
        *("assistant", "assistant_begin", "assistant_end", "gen", "gen_int", "gen_string", "image", "select"),
        *("separate_reasoning", "system", "system_begin", "system_end", "user", "user_begin", "user_end", "video"),
    )
}
_CHOICES = {
    name: f"lmprog.choices:{name}"
    for name in ("greedy_token_selection", "token_length_normalized", "unconditional_likelihood_normalized")
}
_DEFAULTS = {
    name: f"{_HERE}.defaults:{name}"
    for name in ("flush_cache", "get_server_info", "global_config", "set_default_backend")
}
_BACKENDS = {
    "Anthropic": "lmprog.backends.anthropic:Anthropic",
    "Engine": f"{_HERE}.engine:Engine",
    "LiteLLM": "lmprog.backends.litellm:LiteLLM",
    "OpenAI": "lmprog.backends.openai:OpenAI",
    "Runtime": f"{_HERE}.runtime:Runtime",
    "RuntimeEndpoint": "lmprog.backends.native:RuntimeEndpoint",
}
_FUNCTION = {"function": f"{_HERE}.functions:function"}
_GLOBAL_CONFIG = {name: f"{_HERE}.defaults:{name}" for name in ("GlobalConfig", "global_config")}
_VERSION = {"__version__": f"{_HERE}.defaults:VERSION"}
_TOKENIZERS = {"get_tokenizer": f"{_HERE}.helpers:get_tokenizer"}

MODULES: Mapping[str, Mapping[str, str]] = {
    "sglang": {**_FUNCTION, **_LANGUAGE, **_CHOICES, **_DEFAULTS, **_BACKENDS, **_VERSION},
    "sglang.api": {**_FUNCTION, **_LANGUAGE, **_DEFAULTS, **_BACKENDS},
    "sglang.global_config": _GLOBAL_CONFIG,
    "sglang.lang": {},
    "sglang.lang.api": {**_FUNCTION, **_LANGUAGE, **_DEFAULTS, **_BACKENDS},
    "sglang.lang.backend": {},
    "sglang.lang.backend.anthropic": {"Anthropic": _BACKENDS["Anthropic"]},
    "sglang.lang.backend.base_backend": {"BaseBackend": "lmprog.backends.base:Backend"},
    "sglang.lang.backend.litellm": {"LiteLLM": _BACKENDS["LiteLLM"]},
    "sglang.lang.backend.openai": {"OpenAI": _BACKENDS["OpenAI"]},
    "sglang.lang.backend.runtime_endpoint": {name: _BACKENDS[name] for name in ("Runtime", "RuntimeEndpoint")},
    "sglang.lang.choices": {**_CHOICES, "ChoicesSamplingMethod": "lmprog.choices:ChoicesMethod"},
    "sglang.lang.global_config": _GLOBAL_CONFIG,
    "sglang.lang.interpreter": {name: f"{_HERE}.states:{name}" for name in ("ProgramState", "ProgramStateGroup")},
    "sglang.lang.ir": {
        **{f"REGEX_{name}": f"{_HERE}.words:REGEX_{name}" for name in ("INT", "FLOAT", "BOOL", "STR")},
        "SglExpr": "lmprog.nodes:Node",
        "SglExprList": "lmprog.nodes:Block",
        "SglFunction": f"{_HERE}.functions:SglFunction",
        "SglGen": "lmprog.nodes:Gen",
        "SglSelect": "lmprog.nodes:Select",
    },
    "sglang.srt": {},
    "sglang.srt.hf_transformers_utils": _TOKENIZERS,
    "sglang.srt.utils": {"is_hip": f"{_HERE}.helpers:is_hip"},
    "sglang.srt.utils.hf_transformers_utils": _TOKENIZERS,
    "sglang.test": {},
    "sglang.test.test_utils": {
        name: f"{_HERE}.helpers:{name}" for name in ("add_common_sglang_args_and_parse", "select_sglang_backend")
    },
    "sglang.utils": {
        name: f"{_HERE}.helpers:{name}"
        for name in ("download_and_cache_file", "dump_state_text", "print_highlight", "read_jsonl")
    },
}
"""Names of each module, as "module:name" of what stands behind them."""


class StandIn(ModuleType):
    """A module of the stand-in. Its names are looked up when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        targets = MODULES[self.__name__]
        if name not in targets and (submodule := f"{self.__name__}.{name}") in MODULES:
            return importlib.import_module(submodule)
        if name not in targets:
            known = ", ".join(dir(self)) or "nothing"
            raise AttributeError(f"lmprog's stand-in for {self.__name__} has no {name!r}; it has {known}.")
        module, _, target = targets[name].partition(":")
        found = getattr(importlib.import_module(module), target)
        setattr(self, name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        """Importing a submodule sets it on its package; a name of the package itself is stronger (global_config)."""
        if not (isinstance(value, StandIn) and name in MODULES[self.__name__]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(MODULES[self.__name__])


def is_stand_in(module: object) -> bool:
    return isinstance(module, StandIn)


class Finder(MetaPathFinder, Loader):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - of the protocol
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "sglang":
            return None
        if fullname not in MODULES:
            raise ModuleNotFoundError(f"lmprog's stand-in for sglang has no module {fullname}.", name=fullname)
        is_package = any(name.startswith(f"{fullname}.") for name in MODULES)
        return ModuleSpec(fullname, self, is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> StandIn:
        return StandIn(spec.name, f"lmprog's stand-in for {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__all__"] = [name for name in MODULES[module.__name__] if not name.startswith("_")]
