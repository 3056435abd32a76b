"""An evaluation that a test kills: `python resumable_eval.py OUT COUNT`. OUT.asked gets a line per call."""

import sys
import time

from lmprog import ScriptedBackend, ScriptedCall
from lmprog.evaluation import Generation, evaluate

task = Generation(
    name="numbers",
    data=[{"number": number % 90} for number in range(int(sys.argv[2]))],  # some are there twice
    question="{number}:",
    answer="{number}",
    target=lambda item: str(item["number"]),
)


def answer(call: ScriptedCall) -> str:
    with open(f"{sys.argv[1]}.asked", "a") as asked:
        asked.write(call.prompt + "\n")
    time.sleep(0.002)
    return f" {call.prompt[:-1]}"


if __name__ == "__main__":
    result = evaluate(task, backend=ScriptedBackend(answer), records=sys.argv[1], num_threads=4)
    print(len(result.records), result.metrics["exact_match"].value, result.resumed)
