"""Errors as HTTP answers, in the shape that OpenAI's clients read. One place decides the status."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lmprog_runtime.errors import EngineFailed, ModelNotFound, RequestAborted, RequestRefused, RuntimeFault
from lmprog_runtime.server.mistakes import first_mistake

log = logging.getLogger("lmprog.server")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Stopped(Exception):
    """The request was ended by a call of /abort."""


class Unavailable(Exception):
    """The server cannot take requests now; the message is the reason."""


class Overloaded(Exception):
    """The queue is full."""


class Answer(JSONResponse):
    """JSON that can always be sent: half a surrogate pair in echoed text becomes a question mark."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )


def error_body(
    message: str, kind: str = "invalid_request_error", *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_answer(
    status: int,
    message: str,
    kind: str = "invalid_request_error",
    *,
    code: str | None = None,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    body = error_body(message, kind, code=code, param=param)
    return Answer(body, status_code=status, headers=dict(headers) if headers else None)


def answer_for(error: BaseException) -> Answer:
    """The answer to an exception. What the runtime did not raise on purpose is a 500 without its details."""
    if isinstance(error, EngineFailed):
        return error_answer(500, str(error), "server_error", code=error.code)
    if isinstance(error, RequestAborted):
        return error_answer(503, str(error), "server_error", code=error.code)
    if isinstance(error, RuntimeFault):
        return error_answer(404 if isinstance(error, ModelNotFound) else 400, str(error), code=error.code)
    if isinstance(error, Unavailable):
        return error_answer(503, str(error), "server_error", code="unavailable", headers={"Retry-After": "1"})
    if isinstance(error, Overloaded):
        return error_answer(429, str(error), "rate_limit_error", code="overloaded", headers={"Retry-After": "1"})
    if isinstance(error, (ClientGone, Stopped)):
        return error_answer(499, str(error), "client_error", code=RequestAborted.code)
    log.error("a request failed", exc_info=error)
    return error_answer(500, "The server failed on this request; its log says why.", "server_error")


def add_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Answer:
        return _invalid(request.url.path, error)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Answer:
        return error_answer(error.status_code, str(error.detail), headers=error.headers)

    for kind in (RuntimeFault, ClientGone, Stopped, Unavailable, Overloaded):

        @app.exception_handler(kind)
        async def fault(_: Request, error: Exception) -> Answer:
            return answer_for(error)


def _invalid(route: str, error: RequestValidationError) -> Answer:
    """The first mistake, named as the client wrote it."""
    errors: Any = error.errors()
    if errors[0]["type"] == "json_invalid":
        reason = errors[0].get("ctx", {}).get("error", errors[0]["msg"])
        return error_answer(400, f"The body is not JSON: {reason}.")
    found = first_mistake(error.body, errors)
    where = ".".join(found.path) or None
    if found.kind == "extra_forbidden":
        advice = _advice(route, error.body, found.path)
        return error_answer(400, f"This route has no field {where!r}; {advice}", param=where)
    return error_answer(400, f"{where or 'The body'}: {found.reason}.", param=where, code=RequestRefused.code)


_FIELDS = ("temperature", "max_tokens", "stop", "messages", "prompt", "model", "stream", "logprobs")
_NATIVE_FIELDS = ("temperature", "max_new_tokens", "stop", "top_p")  # inside sampling_params


def _advice(route: str, body: Any, path: Sequence[str]) -> str:
    """What to write instead of the last field of the path, as the end of a sentence."""
    is_native = route in ("/generate", "/fork")
    given = (*(body if isinstance(body, dict) else ()), path[-1])
    known = _NATIVE_FIELDS if is_native else [field for field in _FIELDS if field not in given]
    near = next(iter(difflib.get_close_matches(path[-1], known, n=1)), None)
    if near is None:
        return "leave it out."
    return f"did you mean {(f'sampling_params.{near}' if is_native and len(path) == 1 else near)!r}?"
