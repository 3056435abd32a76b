"""Request ids: the client's own `X-Request-Id` when it is a plain one, else a new one; echoed in the answer."""

from __future__ import annotations

import re

from fastapi import Request

from lmprog_runtime.server.common import new_id

_PLAIN = re.compile(r"[\w.:-]{1,128}")


def request_id_of(request: Request) -> str:
    """The id of this request, the same one each time it is asked for."""
    known: str | None = getattr(request.state, "request_id", None)
    if known is None:
        given = request.headers.get("x-request-id", "")
        known = given if _PLAIN.fullmatch(given) else new_id("req")
        request.state.request_id = known
    return known
