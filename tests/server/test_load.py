"""The load test, short: 200 clients for some seconds over a tiny model."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.tiny_server import serving

ROOT = Path(__file__).parents[2]


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_test", ROOT / "scripts" / "load_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["load_test"] = module
    spec.loader.exec_module(module)
    return module


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients that leave close nothing
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the size of the process from /proc")
def test_two_hundred_streams_with_clients_that_leave() -> None:
    load = _script().load
    with serving(max_queue=150) as server:
        asyncio.run(load(server.url, "tiny", clients=20, seconds=1.0, headers={}))  # fills caches and pools of threads
        server.comes_to_rest(30)
        before = _resident_megabytes()
        report = asyncio.run(load(server.url, "tiny", clients=200, seconds=6.0, headers={}))
        server.comes_to_rest(60)
        assert report.lost == [], report.lost[:5]
        assert min(report.outcomes[kind] for kind in ("finished", "left", "refused")) > 20, report.outcomes
        assert server.metric("failed_steps_total") == 0
        assert _resident_megabytes() < before + 150
        assert server.http.post("/flush_cache").status_code == 200
        assert server.runtime.statistics()["radix_cache"]["used_slots"] == 0
