"""Three branches think in parallel on one shared prefix; the parent joins what they found."""

from lmprog import Runtime, assistant, function, gen, system, user


@function
def review(s, essay):
    s += system("You are a short-spoken editor.")
    s += user(f"Read this text.\n\n{essay}")
    s += assistant("I have read it.")
    with s.fork(["clarity", "depth", "style"]) as branches:
        for aspect, branch in branches.items():
            branch += user(f"In one sentence, judge its {aspect}.")
            branch += assistant(gen("note", max_tokens=40, temperature=0))
    s += user("Notes:\n" + "\n".join(f"- {note}" for note in (branch["note"] for branch in branches)))
    s += user("Give one sentence of advice.")
    s += assistant(gen("advice", max_tokens=40, temperature=0))


ESSAY = (
    "Rivers shape the land they cross. They carry stones and sand, cut valleys and build deltas, and people have "
    "always settled beside them, for water, for fish and for the road that a river is."
)


def main(backend):
    state = review.run(essay=ESSAY, backend=backend)
    print("Advice:", state["advice"].strip())
    usage = state.usage
    print(f"{usage.prompt_tokens} prompt tokens over all branches, {usage.cached_tokens} of them from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
