"""Who may call what. Deny by default: a route that is not listed here as open needs the key."""

from __future__ import annotations

import hmac

from lmprog_runtime.server.settings import ServerSettings

OPEN_ROUTES = frozenset({"/health", "/live"})
ADMIN_ROUTES = frozenset(
    {"/flush_cache", "/cache/tree", "/cache/explain", "/get_server_info", "/stats", "/abort", "/metrics"}
)


class Access:
    def __init__(self, settings: ServerSettings) -> None:
        self._key = settings.api_key
        self._admin_key = settings.admin_api_key or settings.api_key

    def denial(self, path: str, authorization: str | None) -> str | None:
        """None when the call may go on, else why not, in a sentence that gives nothing away."""
        if path in OPEN_ROUTES:
            return None
        wanted = self._admin_key if path in ADMIN_ROUTES else self._key
        if wanted is None:
            return None
        given = (authorization or "").removeprefix("Bearer ")
        keys = {wanted, self._admin_key or wanted}
        # every key is compared, each in constant time, so that the time taken says nothing
        matches = [hmac.compare_digest(given.encode(), key.encode()) for key in sorted(keys)]
        return None if any(matches) else "The API key is missing or wrong; send it as 'Authorization: Bearer KEY'."


def check_settings(settings: ServerSettings) -> None:
    """ValueError when the server would listen to the public without a key."""
    if not settings.is_loopback and settings.api_key is None and not settings.allow_public_without_key:
        raise ValueError(
            f"Refusing to listen on {settings.host} without an API key: set LMPROG_API_KEY, or listen on 127.0.0.1."
        )
