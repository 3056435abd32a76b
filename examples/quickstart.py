"""A first program: text, one generation, one choice."""

from lmprog import Runtime, function, gen, select


@function
def capital(s, country):
    s += f"Q: What is the capital of Germany?\nA: Berlin\nQ: What is the capital of {country}?\nA:"
    s += gen("answer", max_tokens=12, temperature=0, stop="\n")
    s += f"\nQ: On which continent is {country}?\nA:"
    s += select("continent", choices=[" Europe", " Asia", " Africa", " America"])


def main(backend):
    for country in ("France", "Japan"):
        state = capital.run(country=country, backend=backend)
        print(f"{country}: {state['answer'].strip()}, in{state['continent']}")
    print(f"{state.usage.cached_tokens} of {state.usage.prompt_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
