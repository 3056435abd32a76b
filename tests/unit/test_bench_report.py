"""Reading results, grouping them into curves and tables, and the page with its pictures."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from lmprog_runtime.bench import report
from lmprog_runtime.bench.metrics import serving_metrics
from lmprog_runtime.bench.outcome import Outcome
from lmprog_runtime.bench.results import Results, curves, describe, load_of, pool_size, series
from lmprog_runtime.errors import RequestRefused

MACHINE = {
    "date": "2030-01-02",
    "processor": "A <fast> one",
    "cores": 2,
    "device": "cpu",
    "python": "3.11.1",
    "versions": {"torch": "2.13", "lmprog": None},
    "torch_threads": 2,
}
MODEL = {"model": "m", "dtype": "bfloat16", "executor": "cpu", "max_total_tokens": 1024}


def serving_result(concurrency: int, *, seconds: float = 2.0, cached: bool = True, pool: int = 1024) -> dict[str, Any]:
    outcomes = [Outcome(10, start=0.0, latency=1.0, ttft=0.5, itl=[0.5], output_len=2, cached_tokens=5 * cached)]
    return {
        "kind": "serving",
        "tag": None,
        "scale": 1.0,
        "model": "m",
        "target": MODEL | {"max_total_tokens": pool},
        "dataset_name": "random",
        "cache_state": "cold",
        "disable_radix_cache": not cached,
        "request_rate": "inf",
        "max_concurrency": concurrency,
        "threads": None,
        "environment": MACHINE,
        **serving_metrics(outcomes, seconds),
    }


def numbers(rate: float, computed: int = 100) -> dict[str, float]:
    return {"programs_per_second": rate, "computed_tokens": computed, "hit_rate": 0.5, "best_hit_rate": 0.625}


PROGRAMS: dict[str, Any] = {
    "kind": "programs",
    "count": 4,
    "at_a_time": 2,
    "rounds": 3,
    "threads": 2,
    "programs": {"judge": {"full": numbers(8.0), "no cache": numbers(2.0, 400), "no forks": numbers(4.0)}},
    "model": MODEL,
    "environment": MACHINE,
}
PEERS: dict[str, Any] = {
    "kind": "peers",
    "scale": 1.0,
    "rounds": 3,
    "threads": 3,
    "output_tokens": {"fork": [4, 5], "chat": [3]},
    "accepted_guesses": {"fork": [3, 4], "chat": [0]},
    "seconds": {"fork": {"other": [4.0, 9.0, 1.0], "lmprog": [2.0, 1.0, 50.0]}, "chat": {"lmprog": [1.0]}},
    "model": MODEL,
    "environment": MACHINE,
}
ALL = [PROGRAMS, PEERS, serving_result(1), serving_result(4, seconds=1.0), serving_result(1, cached=False)]


def write(path: Path, results: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(result) + "\n" for result in results))
    return path


def test_results_are_sorted_by_kind_and_mistakes_name_the_line(tmp_path: Path) -> None:
    found = Results.read([write(tmp_path / "a.jsonl", ALL), write(tmp_path / "b.jsonl", [PEERS])])
    assert [len(each) for each in found] == [3, 1, 2]
    with pytest.raises(RequestRefused, match="line 2 is no result"):
        Results.read([write(tmp_path / "c.jsonl", [PEERS, {"kind": "poem"}])])
    (tmp_path / "d.jsonl").write_text("nonsense\n")
    with pytest.raises(RequestRefused, match="line 1 is not JSON"):
        Results.read([tmp_path / "d.jsonl"])


def test_a_point_is_the_median_of_the_rounds_of_one_load() -> None:
    rounds = [serving_result(1, seconds=value) for value in (1.0, 2.0, 4.0)]
    found = curves(
        [*rounds, serving_result(8, seconds=0.5), serving_result(1, cached=False)], "concurrency", "duration"
    )
    assert found == {"with prefix cache": [(0.5, 2.0), (2.0, 0.5)], "without prefix cache": [(0.5, 2.0)]}
    pools = curves([serving_result(1, pool=size) for size in (4096, 512)], "pool", "cache_hit_rate")
    assert pools == {"with prefix cache": [(512, 0.5), (4096, 0.5)]}


def test_a_curve_is_of_one_workload_with_one_thing_varied() -> None:
    at_loads = [serving_result(number, pool=512) for number in (1, 2, 4)]
    at_pools = [serving_result(3, pool=size) for size in (256, 1024)]
    other = serving_result(8, pool=512) | {"total_input_tokens": 99}
    results = [*at_pools, other, *at_loads]
    assert series(results, varied=load_of, fixed=pool_size) == at_loads
    assert series(results, varied=pool_size, fixed=load_of) == at_pools
    assert series(at_loads, varied=pool_size, fixed=load_of) == series([], varied=load_of, fixed=pool_size) == []


def test_tables_have_ratios_of_medians() -> None:
    assert report.peers_table(PEERS) == (
        ["workload", "lmprog", "other"],
        [["fork", "2.00 s", "4.00 s (2.0x)"], ["chat", "1.00 s", "-"]],
    )
    head, rows = report.programs_table(PROGRAMS["programs"])
    assert rows == [["judge", "8.00", "2.00 (4.00x)", "4.00 (2.00x)", "-", "100", "400", "50.0%", "62.5%"]]
    assert len(head) == len(rows[0])
    head, rows = report.serving_table([serving_result(1, seconds=value) for value in (1.0, 2.0, 4.0)])
    assert rows == [["with prefix cache", "random", "cold", "0.50", "5", "1", "500", "500", "500.0", "50.0%", "0"]]
    assert len(head) == len(rows[0])


def test_a_result_says_what_it_ran_on() -> None:
    text = describe(PEERS)
    for part in ("A <fast> one, 2 cores", "m in bfloat16", "executor cpu", "3 threads", "torch 2.13", "2030-01-02"):
        assert part in text
    assert "lmprog None" not in text
    assert "m in bfloat16" in describe(serving_result(1))
    assert "threads" not in describe(serving_result(1))  # of a server, nobody says


def test_the_page_holds_everything_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    results = write(tmp_path / "a.jsonl", [*ALL, serving_result(1, pool=4096)])
    assert report.main([str(results), "--output", str(tmp_path / "out")]) == 0
    names = {"programs", "peers", "latency", "pool"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "index.html",
        *(f"{name}.{kind}" for name in names for kind in ("png", "svg")),
    }
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<svg") == 4
    assert page.count("<table") == 3
    assert "A &lt;fast&gt; one" in page
    assert not re.findall(r"""(?:src|href)=["'](?!#)""", page.replace('xlink:href="#', ""))
    assert all((tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)


def test_the_document_is_made_of_the_results(tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "benchmarks_doc.py"))
    printed = tmp_path / "forced_text.txt"
    printed.write_text("$ a command\nits answer\n")
    text = "\n".join(script["document"](Results.read([write(tmp_path / "a.jsonl", ALL)]), [printed]))
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Peers",
        "## Programs",
        "## Serving",
        "## forced text",
        "## Measure it yourself",
    ]
    assert "| fork | 2.00 s | 4.00 s (2.0x) |" in text
    assert text.count("A <fast> one") == 3
    assert "scale 1.0, 1 requests in each run, rounds: 1;" in text
    assert "scale 1.0, rounds: 3; tokens of lmprog that were right guesses: fork 7 of 9;" in text
    assert "    lmprog bench peers --dtype bfloat16 --scale 1.0 --rounds 3 --output-file" in text
    assert "    lmprog bench programs --count 4 --rounds 3 --output-file" in text
    assert "```\n$ a command\nits answer\n```" in text


def test_a_command_of_peers_names_llama_cpp_where_it_took_part() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "benchmarks_doc.py"))
    result = {"seconds": {"fork": {"lmprog": [1.0], "llama.cpp Q8_0": [2.0]}}, "model": {"dtype": "int8"}}
    assert script["_peer_flags"](result) == " --dtype int8 --llama-cpp FILE.gguf"


def test_no_results_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="no results"):
        report.main([str(write(tmp_path / "a.jsonl", []))])
