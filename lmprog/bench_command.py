"""`lmprog bench WHAT`: benchmarks of serving, of programs, against peers, and a report of their results."""

from __future__ import annotations

import importlib
from collections.abc import Callable

_BENCHMARKS = {
    "serving": ("lmprog_runtime.bench.serving", "throughput and latencies of a server or a runtime in this process"),
    "peers": ("lmprog_runtime.bench.peers", "sharing workloads against transformers and running servers"),
    "programs": ("lmprog.bench.command", "programs, with and without cache, forks and jump-forward"),
    "report": ("lmprog_runtime.bench.report", "pictures and one HTML page from the results of the others"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one of the benchmarks; each parses its own flags. The list of them for --help, status 2 for another name."""
    name, *rest = arguments or ["--help"]
    if name not in _BENCHMARKS:
        print("usage: lmprog bench WHAT [flags]; `lmprog bench WHAT --help` lists the flags\n")
        for known, (_, text) in _BENCHMARKS.items():
            print(f"  {known:<10}{text}")
        return 0 if name in ("-h", "--help") else 2
    run: Callable[[list[str]], int] = importlib.import_module(_BENCHMARKS[name][0]).main
    return run(rest)
