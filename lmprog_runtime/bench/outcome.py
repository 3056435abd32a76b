"""How one request of a benchmark went. No logic beyond adding up times as they come."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Times in seconds. `start` is on the clock of time.perf_counter."""

    prompt_len: int  # tokens, as the sender counts them; replaced by what the server says
    start: float = field(default_factory=time.perf_counter)
    latency: float = 0.0
    ttft: float | None = None  # None: no output token came
    itl: list[float] = field(default_factory=list)  # one per output token after those of the first piece
    output_len: int = 0
    cached_tokens: int | None = None  # None: the server does not say
    text: str = ""
    token_ids: list[int] = field(default_factory=list)  # of the output, where the target knows them
    error: str = ""
    _last: float = 0.0

    @property
    def is_success(self) -> bool:
        return not self.error

    def note_piece(self, tokens: int = 1) -> None:
        """Some output tokens have come now. A piece of several tokens counts as so many equal steps."""
        now = time.perf_counter()
        if self.ttft is None:
            self.ttft = now - self.start
        elif tokens:
            self.itl += [(now - self._last) / tokens] * tokens
        self._last = now

    def note_end(self) -> None:
        self.latency = time.perf_counter() - self.start

    def settle(self) -> None:
        """An answer that came whole, at its end, has its first token there."""
        if self.ttft is None and self.output_len:
            self.ttft = self.latency

    def token_times(self) -> list[float]:
        """When the pieces came, on the clock of `start`."""
        if self.ttft is None:
            return []
        times = [self.start + self.ttft]
        for gap in self.itl:
            times.append(times[-1] + gap)
        return times
