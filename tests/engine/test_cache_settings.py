"""Settings of a runtime that change how KV is kept and checked, each by its effect: codecs, proof mode."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import pytest

from lmprog_runtime.request import Completion, GenerateRequest
from lmprog_runtime.verification import CacheVerifier
from tests.support.tiny_engine import greedy, prompt, run
from tests.support.tiny_local import tiny_local

IDS = prompt("a prompt of three blocks of tokens, for KV is kept below the pool in whole blocks of 64 tokens.  " * 2)[
    : 3 * 64
]


class _Reloaded(NamedTuple):
    cold: Completion
    warm: Completion
    kept_bytes: int


def _evicted_and_asked_again(codec: str) -> _Reloaded:
    with closing(tiny_local(host_cache_bytes=10**7, kv_codec=codec)) as runtime:
        cold = run(runtime.engine, GenerateRequest(IDS, greedy(8, logprobs=True)))
        cache = runtime.engine.cache
        runtime.on_engine(lambda: cache.evict(cache.num_slots))
        assert cache.tiers is not None
        kept = cache.tiers.host.used_bytes
        warm = run(runtime.engine, GenerateRequest(IDS, greedy(8, logprobs=True)))
    assert cold.usage.cached_tokens == 0
    assert warm.loaded == (len(IDS) - 1, 0)
    return _Reloaded(cold, warm, kept)


def _logprobs(done: Completion) -> list[float]:
    return [entry.logprob or 0.0 for entry in done.logprobs]


@pytest.mark.parametrize(("codec", "share"), [("bfloat16", 0.5), ("int8", 0.25 * 34 / 32)])
def test_kv_that_is_kept_in_fewer_bytes_is_close(codec: str, share: float) -> None:
    """A request that reads it sees nearly what was computed, and not quite: so the codec was really used."""
    raw, small = _evicted_and_asked_again("raw"), _evicted_and_asked_again(codec)
    assert _logprobs(raw.warm) == pytest.approx(_logprobs(raw.cold), abs=1e-4)
    assert small.kept_bytes == pytest.approx(raw.kept_bytes * share, rel=0.01)
    first, again = _logprobs(small.cold)[0], _logprobs(small.warm)[0]
    assert 1e-6 < abs(first - again) < 0.1


def test_a_share_of_the_requests_is_verified() -> None:
    request = GenerateRequest(IDS, greedy())
    for share in (0.25, 0.75):
        verifier = CacheVerifier(share, "float32", lambda *_: 0)
        assert sum(verifier.wants(request) for _ in range(2000)) == pytest.approx(2000 * share, rel=0.1)
    everything = CacheVerifier(1.0, "float32", lambda *_: 0)
    assert everything.wants(request)
    assert not everything.wants(GenerateRequest(IDS, greedy(), use_cache=False))


def test_a_runtime_verifies_the_share_it_was_told() -> None:
    with closing(tiny_local(verify_cache=0.25)) as runtime:
        verifier = runtime.engine.verifier
        assert verifier is not None
        wanted = sum(verifier.wants(GenerateRequest(IDS, greedy())) for _ in range(2000))
    assert wanted == pytest.approx(500, rel=0.1)
