"""A chat of several turns. What was said before is never computed again."""

from lmprog import Runtime, assistant, function, gen, system, user


@function
def chat(s, questions):
    s += system("You answer in one short sentence.")
    for number, question in enumerate(questions):
        s += user(question)
        s += assistant(gen(f"answer{number}", max_tokens=32, temperature=0))


QUESTIONS = ["What is the largest planet?", "Does it have moons?", "Name one of them."]


def main(backend):
    state = chat.run(questions=QUESTIONS, backend=backend)
    for message in state.messages():
        print(f"{message['role']:>9}: {message['content'].strip()}")
    usage = state.usage
    print(f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
