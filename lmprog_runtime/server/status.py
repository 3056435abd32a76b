"""Routes about the server itself: models, health, statistics, the cache, tokens. None of them shows a prompt, unless
the setting `show_cache_text` says so."""

from __future__ import annotations

import asyncio
import importlib.metadata
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from lmprog_runtime.errors import RequestRefused
from lmprog_runtime.params import check_token_ids
from lmprog_runtime.server.bridge import on_engine
from lmprog_runtime.server.failures import Answer, error_answer
from lmprog_runtime.server.prompts import chat_ids, encode, prompt_ids
from lmprog_runtime.server.protocol import Ids, Message, Salt, Strict
from lmprog_runtime.server.state import ServerState
from lmprog_runtime.server.streams import CloseBody
from lmprog_runtime.server.tree_view import explanation_view, tree_view


class TokenizeBody(Strict):
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = False
    add_generation_prompt: bool = True
    model: str | None = None


class DetokenizeBody(Strict):
    tokens: Ids
    model: str | None = None


class AbortBody(Strict):
    rid: str


class ExplainBody(Strict):
    text: str | None = None
    input_ids: Ids | None = None
    messages: list[Message] | None = None
    cache_salt: Salt | None = None


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

    @app.get("/health", response_model=None)
    async def health() -> Response:
        reason = state.why_unhealthy()
        if reason is None:
            return Answer({"status": "ok"})
        return Answer({"status": "unavailable", "reason": reason}, status_code=503)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version()}

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        await state.refresh_metrics()
        return Response(state.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/stats")
    async def stats() -> dict[str, Any]:
        return {**await state.statistics(), "requests": state.running}

    @app.post("/close_streams")
    async def close_streams(request: Request, body: CloseBody) -> dict[str, int]:
        """Streams of programs that have ended: their prefixes are no longer held. Unknown ones are fine."""
        tenant = state.session(request).tenant
        return {"closed": sum(state.streams.close(tenant, ended) for ended in body.streams)}

    @app.post("/abort", response_model=None)
    async def abort(body: AbortBody) -> Response:
        """Stop the requests whose X-Request-Id this is."""
        count = state.abort(body.rid)
        return Answer({"aborted": count}) if count else error_answer(404, "No request with this id is running.")


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


def _add_tokens(app: FastAPI, state: ServerState) -> None:
    runtime = state.runtime

    @app.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        ids = await asyncio.to_thread(_tokenize, state, body)
        return {"tokens": ids, "count": len(ids), "max_model_len": runtime.engine.context_length}

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        check_token_ids("tokens", tuple(body.tokens), runtime.executor.vocab_size)
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


def _tokenize(state: ServerState, body: TokenizeBody) -> list[int]:
    runtime = state.runtime
    if (body.prompt is None) == (body.messages is None):
        raise RequestRefused("Give either prompt or messages.")
    if body.messages is not None:
        return chat_ids(runtime, body.messages, add_generation_prompt=body.add_generation_prompt)
    ids = encode(runtime, body.prompt or "")
    return [*runtime.tokenizer.bos_ids, *ids] if body.add_special_tokens else ids


def _add_cache(app: FastAPI, state: ServerState) -> None:
    engine = state.runtime.engine

    @app.post("/flush_cache")
    async def flush_cache() -> dict[str, Any]:
        return {"evicted_tokens": await on_engine(engine, engine.cache.flush)}

    @app.get("/cache/tree")
    async def tree() -> dict[str, Any]:
        found = await on_engine(engine, engine.cache.dump)
        return await asyncio.to_thread(tree_view, found, state.runtime.tokenizer, state.settings.show_cache_text)

    @app.post("/cache/explain")
    async def explain(request: Request, body: ExplainBody) -> dict[str, Any]:
        ids = await asyncio.to_thread(_explained_ids, state, body)
        namespace = engine.namespace(state.session(request).salt(body.cache_salt))
        found = await on_engine(engine, lambda: engine.cache.explain(namespace, ids))
        return explanation_view(found, ids, state.runtime.tokenizer, state.settings.show_cache_text)


def _explained_ids(state: ServerState, body: ExplainBody) -> list[int]:
    given = [value for value in (body.text, body.input_ids, body.messages) if value is not None]
    if len(given) != 1:
        raise RequestRefused("Give one of text, input_ids and messages.")
    if body.messages is not None:
        return chat_ids(state.runtime, body.messages)
    ids = prompt_ids(state.runtime, body.text if body.text is not None else body.input_ids or [])[0]
    check_token_ids("input_ids", tuple(ids), state.runtime.executor.vocab_size)
    return ids
