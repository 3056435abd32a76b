"""Seconds and memory from a new process to the first token, and with the KV pool full.

    python scripts/bench_startup.py [--model NAME] [--dtype auto] [--slots N] [--rounds 5]

The first round may pack the weights; it is shown apart. Bars: under 3 seconds after that, and with the pool full at
most 1.3 times the weights and the pool.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Round = dict[str, float]
COLUMNS = ("import", "load", "first token", "total", "RSS imported", "RSS first token", "RSS pool full")


def main() -> None:
    arguments = parse()
    if arguments.child:
        print(json.dumps(child(arguments)))
        return
    first, *rounds = [in_new_process() for _ in range(arguments.rounds + 1)]
    print(f"{'':24}" + "".join(f"{name:>16}" for name in COLUMNS) + "   (seconds, MB)")
    print_row("first start", first)
    print_row(f"median of {len(rounds)}", {name: statistics.median(each[name] for each in rounds) for name in first})
    needed = first["weights"] + first["pool"]
    share = statistics.median(each["RSS pool full"] for each in rounds) / needed
    print(f"weights {first['weights']:.0f} MB, pool {first['pool']:.0f} MB; resident, full, over both: {share:.2f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--slots", type=int, help="of the KV pool; default: the runtime's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_new_process() -> Round:
    result = subprocess.run([sys.executable, *sys.argv, "--child"], stdout=subprocess.PIPE, check=True)
    measured: Round = json.loads(result.stdout)
    return measured


def child(arguments: argparse.Namespace) -> Round:
    begin = time.perf_counter()
    from lmprog_runtime.runtime import LocalRuntime

    imported, imported_bytes = time.perf_counter(), resident()
    runtime = LocalRuntime.start(model=arguments.model, dtype=arguments.dtype, max_total_tokens=arguments.slots)
    loaded = time.perf_counter()
    runtime.warm("The capital of France is")
    answered, first_bytes = time.perf_counter(), resident()
    weights, pool = sizes(runtime)
    runtime.close()
    return {
        "import": imported - begin,
        "load": loaded - imported,
        "first token": answered - loaded,
        "total": answered - begin,
        "RSS imported": imported_bytes,
        "RSS first token": first_bytes,
        "RSS pool full": resident(),
        "weights": weights,
        "pool": pool,
    }


def resident() -> float:
    """Megabytes of memory of this process, files that it maps included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024 / 1e6


def sizes(runtime: Any) -> tuple[float, float]:
    """Megabytes of the packed weights, the embedding apart where the head is the same matrix, and of the pool, whose
    every page is written."""
    decoder, spec = runtime.executor.decoder, runtime.executor.spec
    decoder.kv[:] = 1
    packed = runtime.executor.packed
    extra = 0 if spec.tied_head else packed.embedding.nbytes
    return (packed.memory.used + extra) / 1e6, decoder.kv.nbytes / 1e6


def print_row(name: str, values: Round) -> None:
    print(f"{name:24}" + "".join(f"{values[column]:16.2f}" for column in COLUMNS))


if __name__ == "__main__":
    main()
