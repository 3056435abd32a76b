"""Errors as HTTP answers, in the shape that OpenAI's clients read. One place decides the status."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lmprog_runtime.errors import EngineFailed, ModelNotFound, RequestAborted, RequestRefused, RuntimeFault
from lmprog_runtime.server.streaming import ClientGone

log = logging.getLogger("lmprog.server")


def error_body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_answer(status: int, message: str, kind: str, **more: Any) -> JSONResponse:
    return JSONResponse(error_body(message, kind, **more), status_code=status)


def answer_for(error: BaseException) -> JSONResponse:
    """The answer to an exception. What the runtime did not raise on purpose is a 500 without its details."""
    if isinstance(error, RequestRefused):
        return error_answer(400, str(error), "invalid_request_error", code=error.code)
    if isinstance(error, ModelNotFound):
        return error_answer(404, str(error), "invalid_request_error", code=error.code)
    if isinstance(error, RequestAborted):
        return error_answer(503, str(error), "server_error", code=error.code)
    if isinstance(error, EngineFailed):
        return error_answer(500, str(error), "server_error", code=error.code)
    if isinstance(error, RuntimeFault):
        return error_answer(400, str(error), "invalid_request_error", code=error.code)
    if isinstance(error, ClientGone):
        return error_answer(499, "The client closed the connection.", "client_error")
    log.error("a request failed", exc_info=error)
    return error_answer(500, "The server failed on this request; its log says why.", "server_error")


def add_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        return error_answer(400, f"{where or 'body'}: {first['msg']}.", "invalid_request_error", param=where or None)

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return error_answer(error.status_code, str(error.detail), "invalid_request_error")

    for kind in (RuntimeFault, ClientGone, Exception):

        @app.exception_handler(kind)
        async def fault(_: Request, error: Exception) -> JSONResponse:
            return answer_for(error)
