"""KV below the pool: exact after eviction and restart, bounded, and safe against torn files and killed processes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from lmprog_runtime.cache import CacheConfig, CacheManager, TierConfig, Tiers
from lmprog_runtime.cache.file_tier import FileTier
from lmprog_runtime.cache.file_worker import FileWorker
from lmprog_runtime.cache.host_tier import HostTier
from lmprog_runtime.cache.kv_codec import codec_for
from lmprog_runtime.scheduler import Scheduler, SchedulerConfig, Sequence
from tests.support.fake_executor import Driver, FakeExecutor, verify

TOKEN_BYTES = 24


def make(
    directory: Path | None = None, *, num_slots: int = 128, host_tokens: int = 0, write_on_hit: int | None = 1,
    file_bytes: int = 10**6, page_size: int = 1, kv_dtype: str = "fake",
) -> Driver:  # fmt: skip
    executor = FakeExecutor(num_slots)
    executor.kv_dtype = kv_dtype
    config = TierConfig(
        host_bytes=host_tokens * TOKEN_BYTES, directory=directory, file_bytes=file_bytes, block_tokens=8,
        write_on_hit=write_on_hit,
    )  # fmt: skip
    cache = CacheManager(
        CacheConfig(num_slots=num_slots, page_size=page_size, debug_owners=True), tiers=Tiers(config, executor)
    )
    return Driver(Scheduler(SchedulerConfig(context_length=4096), cache), executor)


def run(driver: Driver, tokens: list[int], *, salt: str | None = None, use_cache: bool = True) -> Sequence:
    sequence = Sequence(list(tokens), len(tokens), ("model", None, salt), 2, use_cache=use_cache)
    driver.submit(sequence)
    driver.run()
    verify(driver, sequence)
    return sequence


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("write_on_hit", [None, 0, 1, 5])
def test_what_the_pool_evicts_comes_back_from_the_host_exactly(write_on_hit: int | None, page_size: int) -> None:
    driver = make(host_tokens=1000, write_on_hit=write_on_hit, page_size=page_size)
    text = prompt(60, seed=0)
    run(driver, text)
    for seed in range(1, 5):
        run(driver, prompt(60, seed=seed))
    again = run(driver, text)
    whole = 56 if page_size == 1 else 48  # blocks of 8 of what was published in pages
    assert (again.cached_tokens, again.loaded_tokens) == (whole, (whole, 0))
    longer = run(driver, [*text, *prompt(20, seed=9)])
    assert longer.cached_tokens == (60 if page_size == 1 else 48)
    assert run(driver, text, use_cache=False).cached_tokens == 0


@pytest.mark.parametrize(
    ("write_on_hit", "wanted"),
    [(0, [56, 56, 56, 56]), (1, [0, 56, 56, 56]), (2, [0, 0, 56, 56]), (3, [0, 0, 0, 56]), (None, [0, 0, 0, 0])],
)
def test_tokens_are_copied_down_at_the_hit_that_was_asked_for(write_on_hit: int | None, wanted: list[int]) -> None:
    """Long before the pool is full: nothing is evicted here."""
    driver = make(host_tokens=1000, write_on_hit=write_on_hit)
    cache = driver.scheduler.cache
    assert cache.tiers is not None
    saved = []
    for _ in wanted:
        run(driver, prompt(60, seed=0))
        saved.append(cache.tiers.counters.saved)
    assert saved == wanted
    assert cache.counters.evicted == 0


def test_the_next_process_continues_from_the_files(tmp_path: Path) -> None:
    first = make(tmp_path)
    text = prompt(100, seed=0)
    run(first, text)
    first.scheduler.cache.close()
    first.scheduler.cache.close()
    second = make(tmp_path)
    warm = run(second, text)
    assert (warm.cached_tokens, sum(warm.loaded_tokens)) == (96, 96)
    assert second.executor.computed == 4 + 1
    other = run(second, text[:50] + prompt(20, seed=1))
    assert other.cached_tokens == 50
    assert run(second, text, salt="a").cached_tokens == 0
    assert run(second, text, salt="").cached_tokens == 0
    second.scheduler.cache.close()


def test_files_of_another_type_of_kv_are_a_miss(tmp_path: Path) -> None:
    """Of as many bytes per token, so that nothing else tells them apart."""
    text = prompt(60, seed=0)
    first = make(tmp_path, write_on_hit=0)
    run(first, text)
    first.scheduler.cache.close()
    for kv_dtype, loaded in (("int8", 0), ("fake", 56)):
        other = make(tmp_path, write_on_hit=0, kv_dtype=kv_dtype)
        assert sum(run(other, text).loaded_tokens) == loaded
        other.scheduler.cache.close()


def test_a_restart_loads_part_of_a_block_where_the_prompt_ends_in_it(tmp_path: Path) -> None:
    first = make(tmp_path)
    text = prompt(64, seed=0)
    run(first, text)
    first.scheduler.cache.close()
    second = make(tmp_path)
    assert run(second, text).cached_tokens == 63  # all but the token that is always computed
    second.scheduler.cache.close()


def test_prefetch_brings_files_into_memory_before_admission(tmp_path: Path) -> None:
    first = make(tmp_path)
    text = prompt(100, seed=0)
    run(first, text)
    first.scheduler.cache.close()
    second = make(tmp_path)
    sequence = Sequence(list(text), len(text), ("model", None, None), 2)
    second.submit(sequence)
    tiers = second.scheduler.cache.tiers
    assert tiers is not None
    assert tiers.files is not None
    tiers.files.drain()
    second.run()
    verify(second, sequence)
    assert sequence.loaded_tokens == (96, 0)
    second.scheduler.cache.close()


def test_flush_empties_every_tier(tmp_path: Path) -> None:
    driver = make(tmp_path, host_tokens=500, write_on_hit=0)
    text = prompt(60, seed=0)
    run(driver, text)
    driver.scheduler.cache.flush()
    assert run(driver, text).cached_tokens == 0
    driver.scheduler.cache.close()


@pytest.mark.parametrize("damage", ["truncate", "flip", "swap", "empty"])
def test_a_damaged_file_is_a_miss_and_removed(tmp_path: Path, damage: str) -> None:
    tier = FileTier(tmp_path, 10**6)
    tier.put("aa1", b"x" * 100)
    tier.put("aa2", b"y" * 100)
    path, other = tmp_path / "blocks/aa/aa1.kv", tmp_path / "blocks/aa/aa2.kv"
    content = path.read_bytes()
    damaged = {
        "truncate": content[:-1],
        "flip": content[:-1] + b"z",
        "swap": other.read_bytes(),
        "empty": b"",
    }[damage]
    path.write_bytes(damaged)
    assert tier.get("aa1") is None
    assert tier.corrupt == 1
    assert not path.exists()
    assert tier.get("aa2") == b"y" * 100


def test_files_are_bounded_and_the_least_recent_go(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, 2000)
    for number in range(10):
        tier.put(f"{number:02}", bytes(150))
        os.utime(tmp_path / f"blocks/{number:02}/{number:02}.kv", (number, number))
    assert tier.get("00") is not None  # used now
    tier.put("new", bytes(450))
    sizes = [path.stat().st_size for path in tmp_path.glob("blocks/*/*.kv")]
    assert sum(sizes) <= 2000
    assert "00" in tier
    assert "01" not in tier
    assert "new" in tier
    tier.put("huge", bytes(3000))
    assert "huge" not in tier


def test_leftovers_of_killed_processes_are_cleared_and_never_read(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, 10**6)
    tier.put("aa", b"1")
    old, fresh = tmp_path / "blocks/aa/1-0.tmp", tmp_path / "blocks/aa/2-0.tmp"
    old.write_bytes(b"torn")
    fresh.write_bytes(b"being written")
    os.utime(old, (0, 0))
    FileTier(tmp_path, 10**6)
    assert (old.exists(), fresh.exists()) == (False, True)


def _write_for_ever(directory: str, seed: int) -> None:
    tier = FileTier(directory, 200_000)
    rng = random.Random(seed)
    while True:
        number = rng.randrange(200)
        tier.put(f"{number:03}", bytes([number]) * 5000)


def test_killed_writers_and_several_processes_leave_only_whole_blocks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_for_ever, args=(str(tmp_path), seed)) for seed in range(2)]
    for writer in writers:
        writer.start()
    tier = FileTier(tmp_path, 200_000)
    deadline = time.monotonic() + 60
    found = 0
    while found < 300 and time.monotonic() < deadline:
        for number in range(200):
            block = tier.get(f"{number:03}")
            assert block is None or block == bytes([number]) * 5000
            found += block is not None
    for writer in writers:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert found >= 300
    assert tier.corrupt == 0
    for number in range(200):
        block = tier.get(f"{number:03}")
        assert block is None or block == bytes([number]) * 5000


def test_a_full_disk_is_reported_once_and_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: FileTier, key: str, block: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileTier, "put", full)
    driver = make(tmp_path, write_on_hit=0)
    for seed in range(3):
        run(driver, prompt(60, seed=seed))
    tiers = driver.scheduler.cache.tiers
    assert tiers is not None
    worker = tiers.files
    assert worker is not None
    driver.scheduler.cache.close()
    assert worker.errors > 1
    assert [record.message for record in caplog.records] == [
        "The KV file tier cannot write: [Errno 28] No space left on device. Requests go on without it."
    ]


def test_an_unusable_directory_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        FileTier(tmp_path / "file", 1000)


def test_writes_that_pile_up_are_skipped_not_kept(tmp_path: Path) -> None:
    worker = FileWorker(FileTier(tmp_path, 10**6), most_queued_bytes=250)
    for number in range(10):
        worker.put(f"{number:02}", bytes(100))
    worker.drain()
    assert 0 < worker.skipped <= 8
    assert sum(f"{number:02}" in worker for number in range(10)) == 10 - worker.skipped
    worker.put("late", bytes(100))
    assert worker.get("late") == bytes(100)
    worker.close([])


def test_host_tier_is_bounded_by_bytes_and_forgets_the_least_recent() -> None:
    tier = HostTier(300)
    for key in "abc":
        assert tier.put(key, bytes(100)) == []
    assert tier.get("a") is not None
    assert tier.put("a", bytes(100)) == []
    assert [key for key, _ in tier.put("d", bytes(150))] == ["b", "c"]
    assert tier.used_bytes == 250
    assert [key for key, _ in tier.put("e", bytes(301))] == ["a", "d", "e"]
    assert len(tier) == tier.used_bytes == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("width", [64, 70])
def test_codecs_are_as_exact_as_they_say(dtype: str, width: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(16, width)).astype(np.float32) * np.exp(rng.normal(size=(16, 1))).astype(np.float32)
    values[0], values[1, :3] = 0, (1e-8, -30, 7)
    rows = codec_for("bfloat16", dtype).decode(codec_for("bfloat16", "float32").encode(values.view(np.uint8)), 16)
    kept = _as_float(rows, dtype)
    assert np.array_equal(codec_for("raw", dtype).decode(codec_for("raw", dtype).encode(rows), 16), rows)
    half = codec_for("bfloat16", dtype)
    assert len(half.encode(rows)) == 2 * values.size
    assert np.allclose(_as_float(half.decode(half.encode(rows), 16), dtype), kept, rtol=2**-8, atol=1e-7)
    small = codec_for("int8", dtype)
    data = small.encode(rows)
    assert len(data) == 8 + 16 * -(-width // 32) * (32 + 2)
    padded = np.pad(kept, ((0, 0), (0, -width % 32))).reshape(16, -1, 32)
    step = np.repeat(np.abs(padded).max(axis=2) / 127, 32, axis=1)[:, :width]
    error = np.abs(_as_float(small.decode(data, 16), dtype) - kept)
    assert np.all(error <= step * 0.51 + 2**-8 * np.abs(kept) + 1e-5)


def _as_float(rows: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return rows.view(dtype).astype(np.float32)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'int8'"):
        codec_for("int4", "float32")
    with pytest.raises(ValueError, match="cannot be compressed"):
        codec_for("int8", "fake")
    with pytest.raises(ValueError, match="host_bytes, a directory, or both"):
        TierConfig()
    with pytest.raises(ValueError, match="block_tokens is 0"):
        TierConfig(host_bytes=1, block_tokens=0)
    with pytest.raises(ValueError, match="cannot be negative"):
        TierConfig(host_bytes=-1)
