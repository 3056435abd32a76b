"""A batch that a test kills in the middle: `python resumable_batch.py OUT COUNT`.

Each item that runs appends a line to OUT.ran.
"""

import os
import sys
import time

from lmprog import ScriptedBackend, function, gen


@function
def work(s, number):
    with open(f"{sys.argv[1]}.ran", "a") as ran:
        ran.write(f"{number}\n")
    time.sleep(0.002)
    s += f"Item {number}:" + gen("x")


if __name__ == "__main__":
    backend = ScriptedBackend(lambda call: f" answer to {call.prompt}")
    items = ({"number": i} for i in range(int(sys.argv[2])))
    runs = work.run_batch(items, backend=backend, num_threads=4, resume=sys.argv[1])
    assert [run["x"] for run in runs] == [f" answer to Item {i}:" for i in range(len(runs))]
    print(len(runs), len(backend.calls), os.getpid())
