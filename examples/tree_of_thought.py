"""Tree of thought: propose several next steps, score each, go on with the best."""

from lmprog import Runtime, assistant, function, gen, select, user

BRANCHES, DEPTH = 3, 2
GRADES = ["1", "2", "3", "4", "5"]


@function
def solve(s, problem):
    s += user(f"{problem}\nThink in short steps.")
    for step in range(DEPTH):
        thoughts = s.fork(BRANCHES)
        for number, thought in enumerate(thoughts):
            thought += assistant(
                gen("step", max_tokens=40, temperature=0.8, seed=step * BRANCHES + number, stop="\n\n")
            )
            thought += user("From 1 to 5, how helpful is this step?")
            thought += assistant(select("grade", choices=GRADES))
        best = max(thoughts, key=lambda thought: int(thought["grade"]))
        s += assistant(best["step"])
        s += user("Go on.")
    s += assistant(gen("answer", max_tokens=48, temperature=0))


def main(backend):
    state = solve.run(
        problem="A farmer has 3 pens with 4 sheep each and sells 5 sheep. How many are left?", backend=backend
    )
    print("Answer:", state["answer"].strip())
    usage = state.usage
    print(f"{usage.prompt_tokens} prompt tokens over all branches, {usage.cached_tokens} of them from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
