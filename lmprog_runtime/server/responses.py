"""POST /v1/responses: OpenAI's newer chat, over the same generation as /v1/chat/completions."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from lmprog_runtime.request import Completion, Delta
from lmprog_runtime.server.chat_completions import ChatCall
from lmprog_runtime.server.common import new_id, now
from lmprog_runtime.server.responses_protocol import ResponsesRequest
from lmprog_runtime.server.session import Session
from lmprog_runtime.server.splitting import Piece

Item = dict[str, Any]


class ResponseCall:
    """One request to /v1/responses and how its answer is put together."""

    def __init__(self, session: Session, request: ResponsesRequest) -> None:
        self.session, self.request = session, request
        self.id, self.created = new_id("resp"), now()
        self._chat = ChatCall(session, request.chat())

    async def answer(self) -> dict[str, Any]:
        (result,) = await self.session.run(await self._chat.requests())
        output = _Output()
        for piece in self._chat.pieces(result):
            list(output.push(piece))
        list(output.end())
        return self._response(output.items, result)

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        """Events as OpenAI's clients read them, each with its number."""
        numbers = itertools.count()
        async for event in self._events():
            yield {**event, "sequence_number": next(numbers)}

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        requests = await self._chat.requests()
        splitter, markers, output = self._chat.splitter(), self._chat.markers(), _Output()
        has_begun = False
        async with self.session.start(requests) as runs:
            async for _, event in runs.events():
                if not has_begun:  # not before the engine has taken the request
                    has_begun = True
                    yield {"type": "response.created", "response": self._response([], None)}
                    yield {"type": "response.in_progress", "response": self._response([], None)}
                if isinstance(event, Delta):
                    pieces = splitter.push(markers.push(event.text, event.token_ids))
                else:
                    pieces = splitter.end()
                for change in itertools.chain.from_iterable(output.push(piece) for piece in pieces):
                    yield change
                if isinstance(event, Completion):
                    for change in output.end():
                        yield change
                    body = self._response(output.items, event)
                    yield {"type": f"response.{body['status']}", "response": body}

    def _response(self, items: list[Item], result: Completion | None) -> dict[str, Any]:
        request = self.request
        is_cut = result is not None and result.finish_reason == "length"
        status = "in_progress" if result is None else "incomplete" if is_cut else "completed"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": request.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "output": items,
            "parallel_tool_calls": bool(request.parallel_tool_calls),
            "previous_response_id": None,
            "store": False,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "text": {"format": {"type": "text"}} if request.text is None else request.text.model_dump(by_alias=True),
            "tool_choice": _dumped(request.tool_choice) or "auto",
            "tools": [tool.model_dump() for tool in request.tools or []],
            "truncation": "disabled",
            "usage": None if result is None else _usage(result),
        }


def _dumped(choice: Any) -> Any:
    return choice if choice is None or isinstance(choice, str) else choice.model_dump()


def _usage(result: Completion) -> dict[str, Any]:
    usage = result.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class _Output:
    """Output items as they grow. Each change is told as the events that clients rebuild the items from."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._open: Item | None = None

    def push(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.kind == "call":
            yield from self._push_call(piece)
        elif piece.text:
            yield from self._push_text(piece.text)

    def _push_text(self, text: str) -> Iterator[dict[str, Any]]:
        if self._open is None or self._open["type"] != "message":
            yield from self.end()
            part = {"type": "output_text", "text": "", "annotations": []}
            yield from self._add({"id": new_id("msg"), "type": "message", "role": "assistant", "content": []})
            yield self._event("content_part.added", content_index=0, part=dict(part))
            self.items[-1]["content"].append(part)
        self.items[-1]["content"][0]["text"] += text
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=[])

    def _push_call(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.is_first:
            yield from self.end()
            call = {"call_id": piece.call_id, "name": piece.name, "arguments": ""}
            yield from self._add({"id": new_id("fc"), "type": "function_call", **call})
        self.items[-1]["arguments"] += piece.text
        if piece.text:
            yield self._event("function_call_arguments.delta", delta=piece.text)

    def _add(self, item: Item) -> Iterator[dict[str, Any]]:
        self._open = {**item, "status": "in_progress"}
        self.items.append(self._open)
        shown = {**self._open, "content": []} if item["type"] == "message" else dict(self._open)
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": shown}

    def end(self) -> Iterator[dict[str, Any]]:
        """Close the item that is open."""
        item, self._open = self._open, None
        if item is None:
            return
        item["status"] = "completed"
        if item["type"] == "message":
            part = item["content"][0]
            yield self._event("output_text.done", content_index=0, text=part["text"], logprobs=[])
            yield self._event("content_part.done", content_index=0, part=part)
        else:
            yield self._event("function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _event(self, kind: str, **more: Any) -> dict[str, Any]:
        index = len(self.items) - 1
        return {"type": f"response.{kind}", "item_id": self.items[index]["id"], "output_index": index, **more}
