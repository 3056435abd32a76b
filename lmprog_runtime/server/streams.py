"""Streams of programs on other machines: what holds their prefixes in the cache between two of their requests.

A client names its stream in each request (`stream_id`) and says when it has ended (`/close_streams`). A client may also
vanish, so streams are bounded: in number, the one longest unused goes first, and in time without a request. A stream
that was let go loses nothing but its hold: its next request matches again and holds anew.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated

from pydantic import Field, StrictInt

from lmprog_runtime.cache import Lease
from lmprog_runtime.engine import Engine
from lmprog_runtime.server.protocol import Strict

MOST_STREAMS = 4096
IDLE_SECONDS = 300.0

StreamId = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]
Key = tuple[str | None, str]  # tenant, id


class EndedStream(Strict):
    stream_id: StreamId
    dead_from: Annotated[StrictInt, Field(ge=0)] | None = (
        None  # tokens from here on are the stream's alone: evict first
    )


class CloseBody(Strict):
    streams: Annotated[list[EndedStream], Field(max_length=MOST_STREAMS)]


class StreamBook:
    """The leases of all streams. Used on the event loop only."""

    def __init__(
        self,
        engine: Engine,
        *,
        most: int = MOST_STREAMS,
        seconds: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._most, self._seconds, self._clock = engine, most, seconds, clock
        self._open: OrderedDict[Key, tuple[Lease, float]] = OrderedDict()  # and when used last; oldest first

    def __len__(self) -> int:
        return len(self._open)

    def lease(self, tenant: str | None, stream_id: str) -> Lease:
        """The hold of a stream, which this begins when it is new."""
        key = (tenant, stream_id)
        found, _ = self._open.pop(key, (None, 0.0))
        lease = self._engine.lease() if found is None else found
        self._open[key] = (lease, self._clock())
        if len(self._open) > self._most:
            self._let_go(next(iter(self._open)))
        return lease

    def close(self, tenant: str | None, ended: EndedStream) -> bool:
        """False: no such stream, or it was let go before."""
        key = (tenant, ended.stream_id)
        if key not in self._open:
            return False
        self._let_go(key, ended.dead_from)
        return True

    def sweep(self) -> None:
        """Let go of those that were idle for too long."""
        oldest = self._clock() - self._seconds
        while self._open and next(iter(self._open.values()))[1] < oldest:
            self._let_go(next(iter(self._open)))

    def _let_go(self, key: Key, dead_from: int | None = None) -> None:
        lease, _ = self._open.pop(key)
        self._engine.release(lease, dead_from=dead_from)
