"""The load test, short: 200 clients for some seconds over a tiny model, three times; in the last, memory stays."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.tiny_server import serving

ROOT = Path(__file__).parents[2]
MOST_GROWTH_MB = 30  # of the last of equal rounds


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("load_test", ROOT / "scripts" / "load_test.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["load_test"] = module
    spec.loader.exec_module(module)
    return module


def _resident_megabytes() -> float:
    """Of what is in use: what was freed goes back to the system first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # clients that leave close nothing
@pytest.mark.skipif(sys.platform != "linux", reason="reads the size of the process from /proc")
def test_two_hundred_streams_with_clients_that_leave() -> None:
    load = _script().load
    with serving(max_queue=150) as server:
        resident = []
        for seed in (0, 10**6, 2 * 10**6):  # the first ones fill caches, pools of threads and of memory
            report = asyncio.run(load(server.url, "tiny", clients=200, seconds=4.0, headers={}, seed=seed))
            server.comes_to_rest(60)
            resident.append(_resident_megabytes())
            assert report.lost == [], report.lost[:5]
            assert min(report.outcomes[kind] for kind in ("finished", "left", "refused")) > 20, report.outcomes
        assert server.metric("failed_steps_total") == 0
        assert resident[2] < resident[1] + MOST_GROWTH_MB, resident
        assert server.http.post("/flush_cache").status_code == 200
        assert server.runtime.statistics()["radix_cache"]["used_slots"] == 0
