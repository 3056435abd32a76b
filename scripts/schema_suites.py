"""What the JSON Schema front end handles: pass, refused and wrong over the labelled collections, with the reasons.

    python scripts/schema_suites.py                  both collections: both orders, and instances put in schema order
    python scripts/schema_suites.py --reasons        and every refusal
    python scripts/schema_suites.py --fuzz 20000     20,000 random schemas against jsonschema
    python scripts/schema_suites.py --fuzz 500 --draft 7 --order any --seed 1000000

The collections are not part of this repository; they lie beside the checkout: ../shared/data/jsonschemabench_dev.jsonl
(JSONSchemaBench, development split) and ../shared/data/json_schema_test_suite_draft2020-12 (JSON-Schema-Test-Suite).
Times are processor time of one run, front end and sealing together.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from lmprog_runtime.constraint.json_schema import Order

try:
    from tests.support.schema_fuzz import VALIDATORS, Tally, compare
except ModuleNotFoundError as error:
    sys.exit(f"This script needs {error.name}. Run: pip install {error.name}")
from tests.support.schema_suites import BENCH, SUITE, Group, Outcome, bench_groups, run, suite_groups

VERDICTS = ("pass", "refused", "over", "under")


class Mode(NamedTuple):
    name: str
    order: Order
    reorders: bool


MODES = (
    Mode("order=schema, instances as given", "schema", False),
    Mode("order=schema, instances reordered", "schema", True),
    Mode("order=any, instances as given", "any", False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reasons", action="store_true", help="print each refusal and each wrong result")
    parser.add_argument("--fuzz", type=int, metavar="N", help="compare N random schemas with jsonschema instead")
    parser.add_argument("--draft", type=int, choices=sorted(VALIDATORS), default=2020)
    parser.add_argument("--order", choices=("schema", "any"), default="schema")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.fuzz:
        sys.exit(fuzz(arguments))
    for path, name, groups in ((BENCH, "JSONSchemaBench (dev)", bench_groups), (SUITE, "2020-12 suite", suite_groups)):
        if path.exists():
            report(name, list(groups()), arguments.reasons)
        else:
            print(f"{name}: skipped, {path} is not there")


def report(name: str, groups: list[Group], with_reasons: bool) -> None:
    print(f"\n{name}: {len(groups)} schemas, {sum(len(group.tests) for group in groups)} labelled instances\n")
    print(f"| mode | {' | '.join(VERDICTS)} | ms p50 / p99 / max |\n|---|{'---|' * (len(VERDICTS) + 1)}")
    for mode in MODES:
        outcomes = [run(group, order=mode.order, reorders=mode.reorders) for group in groups]
        print(f"| {mode.name} | {row(outcomes)} |", flush=True)
    print()
    print_reasons(outcomes, with_reasons)


def row(outcomes: list[Outcome]) -> str:
    found = Counter(outcome.verdict for outcome in outcomes)
    times = sorted(1e3 * outcome.seconds for outcome in outcomes)
    middle, high = times[len(times) // 2], times[int(len(times) * 0.99)]
    return " | ".join([*(str(found[verdict]) for verdict in VERDICTS), f"{middle:.2f} / {high:.1f} / {times[-1]:.0f}"])


def print_reasons(outcomes: Iterable[Outcome], in_full: bool) -> None:
    reasons: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.refusal is not None:
            reasons[" ".join(outcome.refusal.split()[:4])] += 1
            if in_full:
                print(f"  {outcome.group.name}: {outcome.refusal}")
        elif outcome.verdict != "pass":
            print(f"  {outcome.verdict.upper()} {outcome.group.name}: {(outcome.over + outcome.under)[0]!r}")
    if not in_full:
        for reason, count in reasons.most_common():
            print(f"  {count:4d}  {reason} ...")


def fuzz(arguments: argparse.Namespace) -> int:
    tally = Tally()
    for seed in range(arguments.seed, arguments.seed + arguments.fuzz):
        compare(tally, seed, arguments.draft, arguments.order)
    print(f"{tally.schemas} schemas ({tally.refused} refused), {tally.instances} instances, {tally.texts} random texts")
    for difference in tally.differences:
        print(f"  {difference}")
    print(f"{len(tally.differences)} differences")
    return 1 if tally.differences else 0


if __name__ == "__main__":
    main()
