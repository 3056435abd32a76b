"""What the language itself costs per gen: `python tests/support/language_cost.py`. The model costs nothing here."""

import time

from lmprog import ScriptedBackend, function, gen

GENS, ROUNDS = 500, 10


@function
def straight(s):
    for _ in range(GENS):
        s += gen("x", max_tokens=4, temperature=0)


@function
def tree(s):
    """27 leaves on three levels."""
    for a in s.fork(3):
        for b in a.fork(3):
            leaves = b.fork(3)
            leaves += gen("x", max_tokens=4, temperature=0)
            leaves.join()


def best_seconds(program, backend):
    def once():
        start = time.perf_counter()
        program.run(backend=backend)
        return time.perf_counter() - start

    return min(once() for _ in range(ROUNDS))


if __name__ == "__main__":
    backend = ScriptedBackend("")
    print(f"one gen:                     {best_seconds(straight, backend) / GENS * 1e6:6.1f} microseconds")
    print(f"one of 27 leaves, with fork: {best_seconds(tree, backend) / 27 * 1e6:6.1f} microseconds")
