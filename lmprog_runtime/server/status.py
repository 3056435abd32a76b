"""Routes about the server itself: models, health, statistics, the cache, tokens. None of them shows a prompt."""

from __future__ import annotations

import asyncio
import importlib.metadata
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from lmprog_runtime.server.prompts import encode
from lmprog_runtime.server.protocol import Strict
from lmprog_runtime.server.state import ServerState


class TokenizeBody(Strict):
    prompt: str
    add_special_tokens: bool = False
    model: str | None = None


class DetokenizeBody(Strict):
    tokens: list[int]
    model: str | None = None


class AbortBody(Strict):
    rid: str


class ExplainBody(Strict):
    text: str | None = None
    input_ids: list[int] | None = None
    cache_salt: str | None = None


def version() -> str:
    return importlib.metadata.version("lmprog")


def add_routes(app: FastAPI, state: ServerState) -> None:
    _add_health(app, state)
    _add_models(app, state)
    _add_tokens(app, state)
    _add_cache(app, state)


def _add_health(app: FastAPI, state: ServerState) -> None:
    @app.get("/live")
    async def live() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/health")
    async def health() -> Response:
        reason = state.why_unhealthy()
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "unavailable", "reason": reason}, status_code=503)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version()}

    @app.get("/metrics")
    async def metrics() -> Response:
        await state.refresh_metrics()
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_models(app: FastAPI, state: ServerState) -> None:
    def card() -> dict[str, Any]:
        return {
            "id": state.model_name,
            "object": "model",
            "created": int(state.started),
            "owned_by": "lmprog",
            "max_model_len": state.runtime.engine.context_length,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        state.check_model(name)
        return card()

    @app.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {"model_path": state.model_name, "is_generation": True, **state.runtime.info()}

    @app.get("/get_server_info")
    async def server_info() -> dict[str, Any]:
        return {**state.runtime.info(), "version": version(), **await state.statistics()}

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        return await state.statistics()


def _add_tokens(app: FastAPI, state: ServerState) -> None:
    runtime = state.runtime

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        ids = await asyncio.to_thread(encode, runtime, body.prompt)
        tokens = [*runtime.tokenizer.bos_ids, *ids] if body.add_special_tokens else ids
        return {"tokens": tokens, "count": len(tokens), "max_model_len": runtime.engine.context_length}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        state.check_ids("tokens", body.tokens)
        return {"prompt": runtime.tokenizer.decode_bytes(body.tokens).decode(errors="replace")}

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        tokenizer = runtime.tokenizer
        return {
            "vocab_size": tokenizer.vocab_size,
            "eos_token_ids": sorted(tokenizer.eos_ids),
            "special_token_ids": sorted(tokenizer.special_ids),
            "bos_token_ids": list(tokenizer.bos_ids),
            "chat_template": runtime.files.chat_template,
            "fingerprint": tokenizer.fingerprint,
        }


def _add_cache(app: FastAPI, state: ServerState) -> None:
    runtime = state.runtime

    @app.post("/flush_cache")
    async def flush_cache() -> dict[str, Any]:
        return {"evicted_tokens": await asyncio.to_thread(runtime.flush_cache)}

    @app.get("/cache/tree")
    async def tree() -> dict[str, Any]:
        return await asyncio.to_thread(runtime.cache.dump)

    @app.post("/cache/explain")
    async def explain(body: ExplainBody) -> dict[str, Any]:
        given = body.input_ids if body.input_ids is not None else body.text or ""
        return await asyncio.to_thread(lambda: runtime.cache.explain(given, salt=body.cache_salt)._asdict())
