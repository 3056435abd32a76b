"""SGLang's `Runtime`: here the model runs in this process, there is no server behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmprog.backends.local import Runtime as LocalRuntime
from lmprog.errors import InvalidArgument

_RENAMED = {
    "model_path": "model",
    "chunked_prefill_size": "step_tokens",
    "max_running_requests": "max_running",
    "radix_eviction_policy": "eviction_policy",
}
_SAME = frozenset(
    ("context_length", "device", "disable_radix_cache", "max_total_tokens", "page_size", "schedule_policy")
)
_DTYPES = {"half": "float16", "float": "float32"}
_ONLY: Mapping[str, tuple[Any, ...]] = {  # what these may be, for there is nothing else
    "dp_size": (1,),
    "pp_size": (1,),
    "tp_size": (1,),
    "skip_tokenizer_init": (False,),
    "trust_remote_code": (False,),
    "enable_lora": (False, None),
}
_OF_THE_SERVER = frozenset(("host", "log_level", "log_level_http", "port", "launch_timeout"))  # there is none


def local_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Server arguments of SGLang as settings of lmprog's runtime. What has no counterpart is refused by name."""
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name == "dtype":
            settings[name] = _DTYPES.get(value, value)
        elif name in _SAME or name in _RENAMED:
            settings[_RENAMED.get(name, name)] = value
        elif name == "tokenizer_path" and value in (None, given.get("model_path")):
            continue
        elif name not in _OF_THE_SERVER and value not in _ONLY.get(name, ()):
            raise InvalidArgument(
                f"lmprog's runtime has no setting like {name}={value!r};",
                hint=f"it has {', '.join(sorted({*_SAME, *_RENAMED, 'dtype'}))}.",
            )
    return settings


class Runtime(LocalRuntime):
    def __init__(self, *, model_path: str, **server_args: Any) -> None:
        super().__init__(**local_settings({"model_path": model_path, **server_args}))

    @property
    def endpoint(self) -> Runtime:
        return self

    def get_model_name(self) -> str:
        return str(self.server_info()["model"])

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def cache_prefix(self, prefix: str) -> None:
        self.warm_prefix(prefix)

    def get_server_info(self) -> dict[str, Any]:
        return self.server_info()

    def shutdown(self) -> None:
        self.close()
