"""What a new process holds when the default model runs: its packed weights once, and no library it does not need."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from lmprog_runtime.ops.native import available_levels
from tests.support.real_model import MODEL, model_files

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not available_levels(), reason="the C++ library does not run here"),
]

_START = """
import json, sys
from lmprog_runtime.runtime import LocalRuntime

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) * 1024

before = resident()
runtime = LocalRuntime.start(model=sys.argv[1], executor="cpu", dtype="bfloat16", max_total_tokens=512)
runtime.warm("The capital of France is")
with open("/proc/self/maps") as maps:
    mapped = sorted({line.split()[-1] for line in maps if line.endswith(("safetensors\\n", "weights\\n"))})
print(json.dumps({
    "mapped": mapped,
    "modules": [name for name in ("transformers", "huggingface_hub", "gguf") if name in sys.modules],
    "grown": resident() - before,
    "weights": runtime.executor.packed.memory.used,
    "pool": runtime.executor.decoder.kv.nbytes,
}))
runtime.close()
"""


def _start() -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", _START, MODEL]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_the_second_start_holds_the_packed_weights_and_nothing_else() -> None:
    model_files()
    _start()  # packs, where nobody has done so
    found = _start()
    assert len(found["mapped"]) == 1
    assert "/packed/" in found["mapped"][0]
    assert found["modules"] == []
    assert found["grown"] < 1.3 * (found["weights"] + found["pool"])
