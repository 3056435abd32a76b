"""What one HTTP request may use: the runtime, a place to report to, and whose prefixes it shares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmprog_runtime.request import Completion
from lmprog_runtime.runtime import LocalRuntime
from lmprog_runtime.server.bridge import Request, Runs


@dataclass(frozen=True, slots=True)
class Session:
    runtime: LocalRuntime
    observe: Callable[[Completion], None]  # called with every finished generation
    request_id: str
    tenant: str | None = None  # digest of the API key when prefixes are not shared between keys

    def start(self, requests: Sequence[Request]) -> Runs:
        """Submit requests together; use the result as an async context."""
        mine = [replace(request, salt=self._salt(request.salt)) for request in requests]
        return Runs(self.runtime.engine, mine, self.observe)

    async def run(self, requests: Sequence[Request]) -> list[Any]:
        """Completions or score results of requests, in order."""
        async with self.start(requests) as runs:
            return await runs.results()

    def _salt(self, salt: str | None) -> str | None:
        """JSON keeps tenant and salt apart: no salt of one tenant can spell another's."""
        return salt if self.tenant is None else json.dumps([self.tenant, salt])


def tenant_of(authorization: str | None) -> str:
    """Stands for an API key without being one."""
    return hashlib.sha256((authorization or "").encode()).hexdigest()
