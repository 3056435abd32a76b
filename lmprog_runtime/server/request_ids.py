"""Request ids: the client's own `X-Request-Id` when it is a plain one, else a new one; echoed in the answer."""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import Scope

from lmprog_runtime.server.common import new_id

_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def request_id_of(scope: Scope) -> str:
    """The id of this request, the same one each time it is asked for."""
    state = scope.setdefault("state", {})
    if "request_id" not in state:
        given = Headers(scope=scope).get("x-request-id", "")
        state["request_id"] = given if _PLAIN.fullmatch(given) else new_id("req")
    known: str = state["request_id"]
    return known
