"""What a benchmark ran on, so that a number never stands without its machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("lmprog", "torch", "transformers", "numpy", "llama_cpp_python")


def environment() -> dict[str, Any]:
    """Machine, versions and threads; plain JSON types."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "torch_threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_memory_mb(pid: int | None) -> float | None:
    """Most resident memory that a process has had, in megabytes (2**20); None where that is not known."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if pid is not None and status.exists() else []
    found = [float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
