"""Streaming: the whole text as it grows, or one variable alone."""

from lmprog import Runtime, assistant, function, gen, user


@function
def story(s, topic):
    s += user(f"Write two sentences about {topic}.")
    s += assistant(gen("story", max_tokens=60, temperature=0))
    s += user("Give it a title of at most five words.")
    s += assistant(gen("title", max_tokens=16, temperature=0))


def main(backend):
    state = story.run(topic="a lighthouse", backend=backend, stream=True)
    for piece in state.text_iter("story"):
        print(piece, end="", flush=True)
    print("\nTitle: ", end="")
    for piece in state.text_iter("title"):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
