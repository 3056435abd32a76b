"""Load on a server over loopback: many streams at once, clients that leave, and malformed requests.

    python scripts/load_test.py http://127.0.0.1:30000 --model smollm2-135m --clients 200 --seconds 120

At the end: every request that was not left has ended (an answer, a refusal with a reason, or 429), nothing runs, the
KV pool holds cached prefixes only, and the process is about as large as before. Status 1 when one of these is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

MALFORMED: tuple[Any, ...] = (
    {"prompt": [-1]},
    {"prompt": "x", "temperature": -3},
    {"prompt": "x", "regex": "ab**"},
    {"prompt": "x", "json_schema": {"type": "strng"}},
    {"prompt": "x" * 100_000},
    {"prompt": "x", "max_tokens": 10**9},
    {"prompt": {"a": 1}},
    {"messages": []},
    [],
    "no object",
)


@dataclass
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    lost: list[str] = field(default_factory=list)  # requests without a proper end

    def note(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


async def load(url: str, model: str, *, clients: int, seconds: float, headers: dict[str, str], seed: int = 0) -> Report:
    """Run `clients` clients side by side for about `seconds` seconds."""
    report, until = Report(), time.monotonic() + seconds
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients // 2)
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=120) as client:
        await asyncio.gather(*(_client(client, model, report, until, random.Random(seed + n)) for n in range(clients)))
    return report


async def _client(client: httpx.AsyncClient, model: str, report: Report, until: float, rng: random.Random) -> None:
    while time.monotonic() < until:
        roll = rng.random()
        try:
            if roll < 0.15:
                await _malformed(client, model, report, rng)
            elif roll < 0.45:
                await _leaver(client, model, report, rng)
            else:
                await _stream(client, model, report, rng)
        except httpx.HTTPError as error:
            report.lost.append(f"{type(error).__name__}: {error}")


def _body(model: str, rng: random.Random) -> dict[str, Any]:
    subject = rng.choice(["rivers", "engines", "birds", "music"])
    body: dict[str, Any] = {
        "model": model,
        "prompt": f"A long introduction that every client shares, about {subject}. " + "and more " * rng.randrange(12),
        "max_tokens": rng.randrange(1, 48),
        "stream": True,
        "n": rng.choice([1, 1, 1, 2, 4]),
        "temperature": 1.0,
    }
    if rng.random() < 0.2:
        body["regex"] = "[a-z ]{1,40}"
    return body


async def _stream(client: httpx.AsyncClient, model: str, report: Report, rng: random.Random) -> None:
    body = _body(model, rng)
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    if answer.status_code == 429:
        report.note("429")
        await asyncio.sleep(0.05)
    elif answer.status_code != 200 or lines[-1] != "data: [DONE]" or "error" in json.loads(lines[-2][6:]):
        report.lost.append(f"{answer.status_code} {lines[-2:]}")
    else:
        report.note("finished")
        report.tokens += len(lines)


async def _leaver(client: httpx.AsyncClient, model: str, report: Report, rng: random.Random) -> None:
    """Leave after some lines, or after some time without reading any."""
    body = _body(model, rng) | {"max_tokens": 200}
    patience = rng.random() * 0.5
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(_read_some(client, body, rng), patience)
    report.note("left")


async def _read_some(client: httpx.AsyncClient, body: dict[str, Any], rng: random.Random) -> None:
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            if rng.random() < 0.1:
                return


async def _malformed(client: httpx.AsyncClient, model: str, report: Report, rng: random.Random) -> None:
    body = rng.choice(MALFORMED)
    body = {"model": model, **body} if isinstance(body, dict) else body
    answer = await client.post("/v1/completions", json=body)
    if answer.status_code not in {400, 404, 413, 429} or not answer.json()["error"]["message"]:
        report.lost.append(f"malformed: {answer.status_code} {answer.text[:200]}")
    report.note("refused")


async def _at_rest(url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Statistics once nothing runs any more, or those of the last try."""
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client:
        for _ in range(200):
            numbers: dict[str, Any] = (await client.get("/stats")).json()
            if not (numbers["running"] or numbers["waiting"] or numbers["requests"]):
                break
            await asyncio.sleep(0.05)
        return numbers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--api-key", default="")
    options = parser.parse_args()
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    given = {"clients": options.clients, "seconds": options.seconds, "headers": headers}
    report = asyncio.run(load(options.url, options.model, **given))
    numbers = asyncio.run(_at_rest(options.url, headers))
    cache = numbers["radix_cache"]
    print(dict(report.outcomes), f"{report.tokens} events")
    print(f"running {numbers['running']}, waiting {numbers['waiting']}, hit rate {cache['cache_hit_rate']:.0%}")
    print(f"slots used {cache['used_slots']}, of them evictable {cache['evictable_tokens']}")
    for line in report.lost[:10]:
        print("LOST", line)
    is_clean = not (report.lost or numbers["running"] or numbers["waiting"] or numbers["requests"])
    return 0 if is_clean and cache["used_slots"] == cache["evictable_tokens"] else 1


if __name__ == "__main__":
    sys.exit(main())
