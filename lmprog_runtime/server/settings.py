"""Settings of the server. The command line's flags and defaults are made from this dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _help(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    host: str = _help("address to listen on; others than loopback need an API key", "127.0.0.1")
    port: int = _help("port to listen on; 0 takes a free one", 30000)
    api_key: str | None = _help("key that requests must carry, or several with commas; better in LMPROG_API_KEY", None)
    admin_api_key: str | None = _help("key of the admin routes, better in LMPROG_ADMIN_API_KEY; default: api_key", None)
    allow_public_without_key: bool = _help("listen on a public address without any key", False)
    served_model_name: str | None = _help("name that clients use; default: the model as given", None)
    max_queue: int = _help("most requests in the server; more are answered 429 with Retry-After", 1024)
    max_body_mb: float = _help("largest request body in megabytes", 16.0)
    isolate_cache: bool = _help("never share prefixes between API keys", False)
    show_cache_text: bool = _help("show cached text (prompts!) in /cache/tree, /cache/explain and the web page", False)
    drain_seconds: float = _help("on SIGTERM, how long running requests may take to finish", 30.0)
    stall_seconds: float = _help("/health is 503 when one step of the model takes longer", 120.0)
    log_format: str = _help("text or json", "text")
    log_requests: bool = _help("log each request (sizes and times, never prompts)", False)
    otlp_endpoint: str | None = _help("send one OpenTelemetry span per request there (needs lmprog[otel])", None)

    @property
    def is_loopback(self) -> bool:
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the generating routes; none when nobody needs one."""
        return _split(self.api_key)

    @property
    def admin_keys(self) -> tuple[str, ...]:
        """Keys that open every route."""
        return _split(self.admin_api_key) or self.keys


def _split(keys: str | None) -> tuple[str, ...]:
    return tuple(key.strip() for key in (keys or "").split(",") if key.strip())
