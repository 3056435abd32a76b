"""Results of benchmarks, read back from their JSON Lines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lmprog_runtime.bench.json_lines import read_values
from lmprog_runtime.errors import RequestRefused

KINDS = ("serving", "programs", "peers")
FULL, NO_CACHE, NO_FORKS, NO_JUMP_FORWARD = "full", "no cache", "no forks", "no jump-forward"
ABLATIONS = (NO_CACHE, NO_FORKS, NO_JUMP_FORWARD)
"""Settings of the benchmark of programs that lack a part of FULL."""


class Results(NamedTuple):
    serving: list[dict[str, Any]]
    programs: list[dict[str, Any]]
    peers: list[dict[str, Any]]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Results:
        """RequestRefused with the number of a line that is no result."""
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
        for path in paths:
            for number, value in read_values(path):
                result = _checked(path, number, value)
                found[result["kind"]].append(result)
        return cls(**found)


def _checked(path: Path, number: int, result: Any) -> dict[str, Any]:
    if not isinstance(result, dict) or result.get("kind") not in KINDS:
        raise RequestRefused(f"{path}, line {number} is no result of `lmprog bench`.")
    return result


OURS = "lmprog"


class PeerTime(NamedTuple):
    """How long one side took for a workload."""

    seconds: float  # the median over the rounds
    ratio: float  # to that of lmprog


def peer_times(sides: dict[str, list[float]]) -> dict[str, PeerTime]:
    """Of every side that did a workload, from its seconds in each round."""
    medians = {name: median(seconds) for name, seconds in sides.items() if seconds}
    return {name: PeerTime(seconds, seconds / medians[OURS]) for name, seconds in medians.items()}


def peer_names(result: dict[str, Any]) -> list[str]:
    """The sides of a benchmark of peers, lmprog first."""
    names = list(dict.fromkeys(name for sides in result["seconds"].values() for name in sides))
    return sorted(names, key=lambda name: name != OURS)


Curves = dict[str, list[tuple[float, float]]]  # by label, points with rising x


def label_of(result: dict[str, Any]) -> str:
    if result["tag"]:
        return str(result["tag"])
    return "without prefix cache" if result["disable_radix_cache"] else "with prefix cache"


def curves(serving: Sequence[dict[str, Any]], x: str, y: str) -> Curves:
    """Medians of y by x over results of equal load (rate and concurrency), sorted along x."""
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for result in serving:
        load = (str(result["request_rate"]), str(result["max_concurrency"]), str(pool_size(result)))
        groups.setdefault((label_of(result), *load), []).append(result)
    found: Curves = {}
    for (label, *_), some in groups.items():
        found.setdefault(label, []).append((median(_value(r, x) for r in some), median(_value(r, y) for r in some)))
    return {label: sorted(points) for label, points in found.items()}


def _value(result: dict[str, Any], key: str) -> float:
    return float(pool_size(result) if key == "pool" else result[key] or 0.0)


def pool_size(result: dict[str, Any]) -> int:
    return int(result["target"].get("max_total_tokens", 0))


Key = Callable[[dict[str, Any]], Hashable]


def load_of(result: dict[str, Any]) -> Hashable:
    return str(result["request_rate"]), str(result["max_concurrency"])


def series(serving: Sequence[dict[str, Any]], varied: Key, fixed: Key) -> list[dict[str, Any]]:
    """The results of one workload and one `fixed` that have the most values of `varied`; none with a single value."""
    groups: dict[Hashable, list[dict[str, Any]]] = {}
    for result in serving:
        workload = (result["dataset_name"], result["total_input_tokens"], fixed(result))
        groups.setdefault(workload, []).append(result)

    def values(group: list[dict[str, Any]]) -> int:
        return len({varied(result) for result in group})

    best = max(groups.values(), key=values, default=[])
    return best if values(best) > 1 else []


def describe(result: dict[str, Any]) -> str:
    """Machine, versions, dtype and threads in one line."""
    machine, model = result["environment"], result.get("model", {})
    model = model if isinstance(model, dict) else result["target"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    parts = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['device']}",
        f"{model.get('model', result.get('model'))} in {model.get('dtype', 'unknown dtype')}",
        f"executor {model.get('executor', 'unknown')}",
        *([f"{result['threads']} threads"] if result["threads"] else []),
        f"Python {machine['python']}, {versions}",
        machine["date"],
    ]
    return "; ".join(parts)
