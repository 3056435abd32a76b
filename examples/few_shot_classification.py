"""Few-shot classification: all examples are computed once, each question only adds its own tokens."""

from lmprog import Runtime, function, select

EXAMPLES = [
    ("I loved every minute of it.", " positive"),
    ("What a waste of an evening.", " negative"),
    ("The best film I have seen this year!", " positive"),
    ("The plot makes no sense and the actors are bored.", " negative"),
]

REVIEWS = [
    ("A wonderful, funny and moving story.", " positive"),
    ("Dull, loud and far too long.", " negative"),
    ("I would watch it again tomorrow.", " positive"),
    ("I left after twenty minutes.", " negative"),
]


@function
def classify(s, review):
    for text, label in EXAMPLES:
        s += f"Review: {text}\nSentiment:{label}\n\n"
    s += f"Review: {review}\nSentiment:"
    s += select("label", choices=[" positive", " negative"])


def main(backend):
    states = classify.run_batch([{"review": text} for text, _ in REVIEWS], backend=backend)
    right = sum(state["label"] == label for state, (_, label) in zip(states, REVIEWS, strict=True))
    for state, (text, _) in zip(states, REVIEWS, strict=True):
        print(f"{state['label'].strip():9} {text}")
    print(f"{right} of {len(REVIEWS)} right")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
