"""Load on a server over loopback: many streams at once, clients that leave, and malformed requests.

    python scripts/load_test.py http://127.0.0.1:30000 --model smollm2-135m --clients 200 --seconds 120

At the end: every request that was not left has ended (an answer, a refusal with a reason, or 429), nothing runs, every
used slot of the KV pool is a cached prefix and after a flush none is used, and with `--pid` the process is about as
large after a second round as after the first, which is as long. Status 1 when one of these is not so.

The KV pool counts as memory when it is first used, so give the server one that the first round fills
(`--max-total-tokens 8192`); then the load also makes it evict and preempt.
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
from pathlib import Path
from typing import Any

import httpx

MOST_GROWTH_MB = 60.0

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
    parser.add_argument("--seconds", type=float, default=120, help="of each of the two rounds")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--pid", type=int, help="of the server's process on this machine: watch its memory")
    options = parser.parse_args()
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    return asyncio.run(_run(options, headers))


async def _run(options: argparse.Namespace, headers: dict[str, str]) -> int:
    warm = await load(options.url, options.model, clients=options.clients, seconds=options.seconds, headers=headers)
    await _at_rest(options.url, headers)
    before = resident_megabytes(options.pid)
    started = time.monotonic()
    report = await load(
        options.url, options.model, clients=options.clients, seconds=options.seconds, headers=headers, seed=10**6
    )
    seconds = time.monotonic() - started
    numbers = await _at_rest(options.url, headers)
    async with httpx.AsyncClient(base_url=options.url, headers=headers, timeout=60) as client:
        await client.post("/flush_cache")
        empty = (await client.get("/stats")).json()["radix_cache"]
    grown = resident_megabytes(options.pid) - before
    problems = [*warm.lost, *report.lost, *_left_over(numbers, empty)]
    problems += [f"memory has grown by {grown:.0f} MB"] if grown > MOST_GROWTH_MB else []
    _print(report, seconds, numbers)
    print(f"memory {before:.0f} MB before, {grown:+.0f} MB after" if options.pid else "memory not watched")
    for line in problems[:10]:
        print("PROBLEM", line)
    return 1 if problems else 0


def _print(report: Report, seconds: float, numbers: dict[str, Any]) -> None:
    cache = numbers["radix_cache"]
    count = sum(report.outcomes.values())
    print(f"{count} requests in {seconds:.0f} s: {dict(report.outcomes)}, lost {len(report.lost)}")
    print(f"{report.tokens} events, hit rate {cache['cache_hit_rate']:.0%}, failed steps {numbers['failed_steps']}")
    print(f"slots used {cache['used_slots']}, of them evictable {cache['evictable_tokens']}")


def _left_over(numbers: dict[str, Any], empty: dict[str, Any]) -> list[str]:
    """What should be nothing at rest, and is not."""
    cache = numbers["radix_cache"]
    held = cache["used_slots"] - cache["evictable_tokens"]
    left = {name: numbers[name] for name in ("running", "waiting", "requests", "failed_steps")}
    left |= {"slots held by nobody": held, "slots used after a flush": empty["used_slots"]}
    return [f"{name}: {count}" for name, count in left.items() if count]


def resident_megabytes(pid: int | None) -> float:
    """Resident memory of a process; 0 for none."""
    if pid is None:
        return 0.0
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


if __name__ == "__main__":
    sys.exit(main())
