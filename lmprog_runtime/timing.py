"""When the parts of a request happened."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Timing:
    submitted: float = field(default_factory=time.monotonic)
    started: float | None = None
    first_token: float | None = None

    def seconds(self) -> dict[str, float]:
        now = time.monotonic()
        started = self.started if self.started is not None else now
        first = self.first_token if self.first_token is not None else now
        return {
            "queue": started - self.submitted,
            "first_token": first - self.submitted,
            "total": now - self.submitted,
        }
