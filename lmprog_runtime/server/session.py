"""What one HTTP request may use: the runtime, a place to report to, and whose prefixes it shares."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lmprog_runtime.cache import Lease
from lmprog_runtime.request import Completion
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.bridge import Request, Runs
from lmprog_runtime.server.streams import StreamBook

MOST_MARKS = 48


@dataclass(slots=True)
class Session:
    runtime: LocalRuntime
    observe: Callable[[Session, Completion], None]  # called with every finished generation
    request_id: str
    streams: StreamBook
    tenant: str | None = None  # digest of the API key when prefixes are not shared between keys
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # set by /abort
    usage: dict[str, int] = field(default_factory=dict)  # tokens of what has finished, for the log and the trace
    constrained: int = 0
    longest: int | None = None  # tokens of the longest generation that has finished
    began: float = field(default_factory=time.monotonic)
    marks: list[tuple[str, float]] = field(default_factory=list)  # what happened when (monotonic), for the trace

    @asynccontextmanager
    async def start(self, requests: Sequence[Request]) -> AsyncGenerator[Runs, None]:
        """Submit requests together; they are aborted when the context ends before they do."""
        mine = [replace(request, salt=self.salt(request.salt)) for request in requests]
        self.constrained += sum(getattr(request, "constraint", None) is not None for request in requests)
        async with Runs(self.runtime.engine, mine, lambda result: self.observe(self, result)) as runs:
            yield runs

    async def run(self, requests: Sequence[Request]) -> list[Any]:
        """Completions or score results of requests, in order."""
        async with self.start(requests) as runs:
            return await runs.results()

    def salt(self, salt: str | None) -> str | None:
        """JSON keeps tenant and salt apart: no salt of one tenant can spell another's."""
        return salt if self.tenant is None else json.dumps([self.tenant, salt])

    def lease(self, stream_id: str | None) -> Lease | None:
        """The hold of a program's stream on its prefix. Call it on the event loop."""
        return None if stream_id is None else self.streams.lease(self.tenant, stream_id)

    def note(self, result: Completion) -> None:
        self.longest = max(self.longest or 0, result.usage.completion_tokens)
        for name, value in result.usage._asdict().items():
            self.usage[name] = self.usage.get(name, 0) + value
        submitted = time.monotonic() - result.timing["total"]
        if len(self.marks) < MOST_MARKS:
            self.marks.append(("queued", submitted))
            self.marks.append(("first step", submitted + result.timing["queue"]))
            self.marks.append(("first token", submitted + result.timing["first_token"]))


def tenant_of(authorization: str | None) -> str:
    """Stands for an API key without being one."""
    return hashlib.sha256((authorization or "").encode()).hexdigest()
