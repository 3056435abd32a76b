"""`lmprog demo`: one program that uses few-shot text, fork/join, select and JSON extraction, and shows what was reused.

The table at the end runs the same work again with the cache off: every number is computed, none is claimed.
"""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import lmprog
from lmprog.report import render_tree

REPORTS = [
    ("The pump leaks oil and has stopped twice this week.", "machine"),
    ("Two people in the night shift have not been paid.", "people"),
    ("The new supplier sends half of the boxes late.", "supply"),
    ("Nobody has cleaned the kitchen on the second floor.", "building"),
]
NEW_REPORT = "On Monday at 7:40 the conveyor in hall 3 broke its belt; Rita Holm stopped the line for 2 hours."
ASPECTS = {"cause": "What broke?", "people": "Who acted?", "cost": "What was lost?"}
INCIDENT = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "maxLength": 24},
        "hours_lost": {"type": "integer", "minimum": 0, "maximum": 99},
        "severity": {"enum": ["low", "medium", "high"]},
    },
    "required": ["place", "hours_lost", "severity"],
    "additionalProperties": False,
}


@lmprog.function
def triage(s: lmprog.State, report: str) -> None:
    """Classify a report from examples, look at it from three sides at once, then fill a form."""
    for text, label in REPORTS:
        s += f"Report: {text}\nKind: {label}\n\n"
    s += f"Report: {report}\nKind:"
    s += lmprog.select("kind", choices=[f" {label}" for _, label in REPORTS])
    with s.fork(list(ASPECTS)) as branches:
        for name, branch in branches.items():
            branch += f"\nQuestion: {ASPECTS[str(name)]}\nAnswer:"
            branch += lmprog.gen("answer", max_tokens=16, temperature=0, stop="\n")
    s += "".join(f"\n{name}:{branch['answer']}" for name, branch in branches.items())
    s += "\nForm: "
    s += lmprog.gen("form", schema=INCIDENT, max_tokens=64, temperature=0)


class _Row(NamedTuple):
    label: str
    prompt: int
    computed: int
    seconds: float


def run_demo(model: str = "smollm2-135m", **settings: Any) -> int:
    """Run it and print it. Returns the exit status."""
    print(f"Loading {model} ...", file=sys.stderr)
    rows = []
    with lmprog.Runtime(model, **settings) as runtime:
        state = _stream(runtime)
        print("\n\nWhat each step read, reused and wrote:\n")
        print(render_tree(state.record))
        rows.append(_measure("cache on", runtime))
    with lmprog.Runtime(model, disable_radix_cache=True, **settings) as runtime:
        rows.append(_measure("cache off", runtime))
    _print_table(rows)
    return 0


def _stream(runtime: lmprog.Runtime) -> lmprog.State:
    state = triage.run(report=NEW_REPORT, backend=runtime, stream=True)
    for piece in state.text_iter():
        print(piece, end="", flush=True)
    return state


def _measure(label: str, runtime: lmprog.Runtime) -> _Row:
    """The same eight reports, as a batch, on an empty cache."""
    reports = [{"report": f"{NEW_REPORT} Ticket {number}."} for number in range(8)]
    triage.run(report="Warm-up.", backend=runtime)
    runtime.flush_cache()
    start = time.perf_counter()
    states = triage.run_batch(reports, backend=runtime, progress_bar=False)
    seconds = time.perf_counter() - start
    prompt = sum(state.usage.prompt_tokens for state in states)
    cached = sum(state.usage.cached_tokens for state in states)
    generated = sum(state.usage.completion_tokens for state in states)
    return _Row(label, prompt, prompt - cached + generated, seconds)


def _print_table(rows: list[_Row]) -> None:
    print("\nThe same program on 8 reports at once:\n")
    print(f"  {'':10} {'prompt tokens':>14} {'tokens computed':>16} {'seconds':>8}")
    for row in rows:
        print(f"  {row.label:10} {row.prompt:>14,} {row.computed:>16,} {row.seconds:>8.2f}")
    on, off = rows
    fewer, faster = off.computed / on.computed, off.seconds / on.seconds
    print(f"\n  With the cache: {fewer:.1f}x fewer tokens computed, {faster:.1f}x faster.")
