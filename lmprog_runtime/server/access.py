"""Who may call what. Deny by default: a route that is not listed here as open needs a key, if there is any.

Without a key only this machine's own programs may call: a web page of another site cannot, neither by sending a form
across origins nor by pointing a name of its own at this address (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from lmprog_runtime.server.settings import ServerSettings

OPEN_ROUTES = frozenset({"/", "/page/app.js", "/page/charts.js", "/page/style.css", "/health", "/live"})
"""The page itself is static; what it shows it asks for with the key that the user typed."""

ADMIN_ROUTES = frozenset({"/flush_cache", "/cache/tree", "/cache/explain", "/get_server_info", "/stats", "/metrics"})

_WRONG_KEY = "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'."


class Denial(NamedTuple):
    status: int
    message: str
    code: str


class Access:
    def __init__(self, settings: ServerSettings) -> None:
        self._keys = settings.keys
        self._admin_keys = settings.admin_keys
        self._host = settings.host

    def denial(self, path: str, headers: Mapping[str, str]) -> Denial | None:
        """None when the call may go on."""
        if path in OPEN_ROUTES:
            return None
        wanted = self._admin_keys if path in ADMIN_ROUTES else (*self._keys, *self._admin_keys) if self._keys else ()
        if wanted:
            given = headers.get("authorization", "").removeprefix("Bearer ")
            return None if _is_one_of(given, wanted) else Denial(401, _WRONG_KEY, "invalid_api_key")
        return self._foreign(headers)

    def _foreign(self, headers: Mapping[str, str]) -> Denial | None:
        """Without a key: calls that a browser makes for another site."""
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if not (name in {"localhost", self._host} or _is_address(name)):
            return Denial(403, f"This server has no API key and is not called {name!r}; set LMPROG_API_KEY.", "host")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return Denial(403, "Pages of other sites may call this server with an API key only.", "origin")
        return None


def _is_one_of(given: str, keys: Sequence[str]) -> bool:
    # every key is compared, each in constant time, so that the time taken says nothing
    return sum(hmac.compare_digest(given.encode(), key.encode()) for key in keys) > 0


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_settings(settings: ServerSettings) -> None:
    """ValueError when the server would listen to the public without a key, or for a value that means nothing."""
    if not settings.is_loopback and not settings.keys and not settings.allow_public_without_key:
        raise ValueError(
            f"Refusing to listen on {settings.host} without an API key: set LMPROG_API_KEY, or listen on 127.0.0.1."
        )
    if settings.log_format not in {"text", "json"}:
        raise ValueError(f"log_format is {settings.log_format!r}; it is text or json.")
    for name in ("max_queue", "max_body_mb", "drain_seconds", "stall_seconds"):
        if getattr(settings, name) <= 0:
            raise ValueError(f"{name} is {getattr(settings, name)}; it must be above 0.")
