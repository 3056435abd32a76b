"""`lmprog bench report`: pictures (PNG and SVG) and one self-contained HTML page, from results of the others."""

from __future__ import annotations

import argparse
import html
import io
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from lmprog_runtime.bench.results import (
    ABLATIONS,
    FULL,
    NO_CACHE,
    OURS,
    Results,
    describe,
    label_of,
    peer_names,
    peer_times,
)
from lmprog_runtime.errors import RequestRefused, RuntimeFault

Cells = list[str]

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>lmprog benchmarks</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
.note {{ color: #555; font-size: 13px; }}
</style></head><body>
<h1>lmprog benchmarks</h1>
{body}
</body></html>
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lmprog bench report", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, help="JSON Lines files that --output-file has written")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for pictures and index.html")
    options = parser.parse_args(arguments)
    results = Results.read(options.results)
    if not any(results):
        raise RequestRefused("The files have no results.")
    options.output.mkdir(parents=True, exist_ok=True)
    page = options.output / "index.html"
    page.write_text(_PAGE.format(body="\n".join(_body(results, options.output))), encoding="utf-8")
    print(page)
    return 0


def _body(results: Results, folder: Path) -> Iterator[str]:
    try:
        from lmprog_runtime.bench.plots import figures
    except ImportError as error:
        raise RuntimeFault(f"Pictures need {error.name}. Run: pip install 'lmprog[plots]'") from error
    for name, figure in figures(results):
        figure.savefig(folder / f"{name}.png", dpi=150)
        text = io.StringIO()
        figure.savefig(text, format="svg")
        (folder / f"{name}.svg").write_text(text.getvalue(), encoding="utf-8")
        yield text.getvalue()[text.getvalue().index("<svg") :]
    for title, head, rows, note in tables(results):
        yield f"<h2>{html.escape(title)}</h2>{_html_table(head, rows)}<p class='note'>{html.escape(note)}</p>"


def _html_table(head: Cells, rows: list[Cells]) -> str:
    def line(cells: Cells, tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<div class='wide'><table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table></div>"


Table = tuple[str, Cells, list[Cells], str]  # title, head, rows, what it ran on


def tables(results: Results) -> Iterator[Table]:
    """The numbers of the last result of a kind, and all of serving, for people."""
    for peers in results.peers[-1:]:
        size = f"scale {peers['scale']}, rounds: {peers['rounds']}{_guesses(peers)}"
        yield "Peers", *peers_table(peers), f"{size}; {describe(peers)}"
    for programs in results.programs[-1:]:
        size = f"{programs['count']} runs each, {programs['at_a_time']} at a time, rounds: {programs['rounds']}"
        yield "Programs", *programs_table(programs["programs"]), f"{size}; {describe(programs)}"
    if results.serving:
        head, rows = serving_table(results.serving)
        last, rounds = results.serving[-1], len(results.serving) // len(rows)
        size = f"scale {last['scale']}, {last['completed'] + last['failed']} requests in each run, rounds: {rounds}"
        yield "Serving", head, rows, f"{size}; {describe(last)}"


def _guesses(peers: dict[str, Any]) -> str:
    """Of how many tokens the guesses came true; nothing for results of before they were counted."""
    pairs = {
        name: (sum(right), sum(peers["output_tokens"][name]))
        for name, right in peers.get("accepted_guesses", {}).items()
    }
    shown = ", ".join(f"{name} {right} of {tokens}" for name, (right, tokens) in pairs.items() if right)
    return f"; tokens of lmprog that were right guesses: {shown}" if shown else ""


def peers_table(result: dict[str, Any]) -> tuple[Cells, list[Cells]]:
    names = peer_names(result)
    rows = []
    for work, sides in result["seconds"].items():
        times = peer_times(sides)
        others = [
            f"{times[name].seconds:.2f} s ({times[name].ratio:.1f}x)" if name in times else "-" for name in names[1:]
        ]
        rows.append([work, f"{times[OURS].seconds:.2f} s", *others])
    return ["workload", *names], rows


def programs_table(programs: dict[str, Any]) -> tuple[Cells, list[Cells]]:
    head = ["program", "programs/s", "without cache", "without forks", "without jump-forward"]
    rows = []
    for name, settings in programs.items():
        full = settings[FULL]
        gains = [_gain(full, settings.get(key)) for key in ABLATIONS]
        rates = [f"{full['hit_rate']:.1%}", f"{full['best_hit_rate']:.1%}"]
        computed = [f"{full['computed_tokens']:,.0f}", f"{settings[NO_CACHE]['computed_tokens']:,.0f}"]
        rows.append([name, f"{full['programs_per_second']:.2f}", *gains, *computed, *rates])
    return [*head, "tokens computed", "without cache", "hit rate", "best possible"], rows


def _gain(full: dict[str, float], other: dict[str, float] | None) -> str:
    if other is None:
        return "-"
    return f"{other['programs_per_second']:.2f} ({full['programs_per_second'] / other['programs_per_second']:.2f}x)"


SERVING_COLUMNS = (
    ("requests/s", "request_throughput", ".2f"),
    ("input tokens/s", "input_throughput", ".0f"),
    ("output tokens/s", "output_throughput", ".0f"),
    ("median TTFT ms", "median_ttft_ms", ".0f"),
    ("p99 TTFT ms", "p99_ttft_ms", ".0f"),
    ("median TPOT ms", "median_tpot_ms", ".1f"),
    ("hit rate", "cache_hit_rate", ".1%"),
    ("failed", "failed", ".0f"),
)


def serving_table(serving: list[dict[str, Any]]) -> tuple[Cells, list[Cells]]:
    """A row per setting, medians over its rounds."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for result in serving:
        setting = str(result.get("setting") or label_of(result))
        groups.setdefault((setting, result["dataset_name"], result["cache_state"]), []).append(result)
    rows = []
    for name, some in groups.items():
        values = [[result[key] for result in some] for _, key, _ in SERVING_COLUMNS]
        shown = [
            "n/a" if None in each else format(median(each), form)
            for each, (*_, form) in zip(values, SERVING_COLUMNS, strict=True)
        ]
        rows.append([*name, *shown])
    return ["setting", "data set", "cache at start", *(title for title, *_ in SERVING_COLUMNS)], rows
