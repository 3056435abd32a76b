"""Pictures of results. Needs matplotlib: `pip install 'lmprog[plots]'`.

Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from lmprog_runtime.bench.results import (
    ABLATIONS,
    FULL,
    OURS,
    Curves,
    Results,
    curves,
    load_of,
    peer_names,
    peer_times,
    pool_size,
    series,
)

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "figure.constrained_layout.use": True,
}


def figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """(file name without ending, figure) for all that the results allow."""
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        if results.programs:
            yield "programs", program_bars(results.programs[-1]["programs"])
        if results.peers:
            yield "peers", peer_bars(results.peers[-1])
        if found := series(results.serving, varied=load_of, fixed=pool_size):
            yield "latency", latency_curve(found)
        cached = [result for result in results.serving if not result["disable_radix_cache"]]
        if found := series(cached, varied=pool_size, fixed=load_of):
            yield "pool", pool_curve(found)


def program_bars(programs: dict[str, Any]) -> Figure:
    """Rate of each program without a part, as a share of the rate with everything."""
    figure = Figure(figsize=(8.5, 0.5 * len(programs) + 1.6))
    axes = figure.add_subplot()
    names = list(programs)
    for index, name in enumerate(names):
        _program_group(axes, index, programs[name])
    axes.axvline(1.0, color="#444444", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, max(1.12, 0.1 + _longest(programs)))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("rate without the part (beside it: how many times as fast with it)")
    axes.set_title("What each part is worth")
    bars = [Patch(color=COLOURS[number]) for number in range(len(ABLATIONS))]
    figure.legend(bars, ABLATIONS, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _program_group(axes: Axes, index: int, settings: dict[str, Any]) -> None:
    shown = [name for name in ABLATIONS if name in settings]
    height = 0.8 / max(2, len(shown))
    for place, name in enumerate(shown):
        share = settings[name]["programs_per_second"] / settings[FULL]["programs_per_second"]
        y = index + (place - (len(shown) - 1) / 2) * height
        axes.barh(y, share, height * 0.92, color=COLOURS[ABLATIONS.index(name)])
        axes.text(share + 0.01, y, f"{1 / share:.2f}x", va="center", fontsize=8)


def _longest(programs: dict[str, Any]) -> float:
    """Largest share of the full rate, which comes first: above 1 where a program is faster without a part."""
    rates = [[numbers["programs_per_second"] for numbers in settings.values()] for settings in programs.values()]
    return max(float(max(some) / some[0]) for some in rates)


def peer_bars(result: dict[str, Any]) -> Figure:
    """How many times as long as here the others take, per workload."""
    workloads = {name: peer_times(sides) for name, sides in result["seconds"].items()}
    names = peer_names(result)[1:]
    figure = Figure(figsize=(8.5, 0.3 * len(workloads) * max(2, len(names)) + 1.8))
    axes = figure.add_subplot()
    height = 0.8 / max(2, len(names))
    for index, times in enumerate(workloads.values()):
        shown = [name for name in names if name in times]
        for place, name in enumerate(shown):
            ratio = times[name].ratio
            y = index + (place - (len(shown) - 1) / 2) * height
            axes.barh(y, ratio, height * 0.92, color=COLOURS[names.index(name) % len(COLOURS)])
            axes.text(ratio, y, f" {ratio:.1f}x", va="center", fontsize=8)
    labels = [f"{name}\n{times[OURS].seconds:.2f} s" for name, times in workloads.items()]
    axes.axvline(1.0, color="#444444", linewidth=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.margins(x=0.1)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("time of the others over lmprog's (whose seconds stand on the left); longer is slower")
    axes.set_title("The same work elsewhere")
    bars = [Patch(color=COLOURS[number % len(COLOURS)]) for number in range(len(names))]
    figure.legend(bars, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def latency_curve(serving: Sequence[dict[str, Any]]) -> Figure:
    """One point per load."""
    figure = Figure(figsize=(9, 4))
    first, second = figure.subplots(1, 2)
    _lines(first, curves(serving, "output_throughput", "median_ttft_ms"))
    _lines(second, curves(serving, "output_throughput", "median_tpot_ms"))
    first.set_ylabel("median time to first token (ms)")
    second.set_ylabel("median time per output token (ms)")
    for axes in (first, second):
        axes.set_xlabel("output tokens per second")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
    figure.suptitle("Throughput against latency", x=0.01, ha="left", fontsize=12)
    first.legend(frameon=False)
    return figure


def pool_curve(serving: Sequence[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(6.5, 4))
    axes = figure.add_subplot()
    found = curves(serving, "pool", "cache_hit_rate")
    _lines(axes, found)
    sizes = sorted({int(x) for points in found.values() for x, _ in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("KV pool (tokens)")
    axes.set_ylabel("hit rate (cached / prompt tokens)")
    axes.set_title("Hit rate against pool size")
    if len(found) > 1:
        axes.legend(frameon=False)
    return figure


def _lines(axes: Axes, found: Curves) -> None:
    for number, (label, points) in enumerate(found.items()):
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker="o", color=COLOURS[number % len(COLOURS)], label=label)
    axes.grid(color="#dddddd", linewidth=0.6)
