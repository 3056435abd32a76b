"""Compile mode: a program as a graph that can be looked at, reordered for more sharing, and run over a batch."""

from lmprog import Runtime, assistant, function, gen, system

TEXTS = ["The meeting is on Monday at nine.", "We sold 40 chairs in May.", "It rained all day in Rome."]


@function(temperature=0)
def question(s, text):
    s += system("You ask questions about texts.")
    with s.user():
        s += f"Text: {text}\n"
        s += "Ask one short question that the text answers.\n"
        s += "Write the question only.\n"
    s += assistant(gen("question", max_tokens=24, stop="\n"))


def main(backend):
    graph = question.trace()
    print(graph)
    better = graph.reordered()
    print("\nmoved:", *better.moved, sep="\n  ")
    runs = better.run_batch([{"text": text} for text in TEXTS], backend=backend, warms_prefix=True)
    for text, run in zip(TEXTS, runs, strict=True):
        print(f"\n{text}\n  {run['question']}")
    cached = sum(run.usage.cached_tokens for run in runs)
    print(f"\n{cached} of {sum(run.usage.prompt_tokens for run in runs)} prompt tokens came from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
