"""A scenario as HELM has them: instances with references, an adapter that makes prompts, metrics over the answers.

The adapter is a multiple-choice question with letters; its examples are computed once for all instances. Robustness is
the share of questions that are right in every perturbed form.
"""

from lmprog import Runtime
from lmprog.evaluation import MultipleChoice, evaluate

QUESTIONS = [
    ("Which animal barks?", ["dog", "fish", "bee"], 0),
    ("Which of these is a colour?", ["spoon", "green", "river"], 1),
    ("What falls from clouds?", ["sand", "bread", "rain"], 2),
    ("Which one can fly?", ["a stone", "a bird", "a table"], 1),
]
TRAINING = [
    ("Which of these is a fruit?", ["apple", "hammer", "shoe"], 0),
    ("What do people read?", ["soup", "books", "wind"], 1),
    ("Which one is cold?", ["fire", "steam", "ice"], 2),
]
PERTURBATIONS = {"none": str, "lower case": str.lower, "extra spaces": lambda text: text.replace(" ", "  ")}


def instances(rows, form):
    change = PERTURBATIONS[form]
    return [{"input": change(text), "references": list(options), "correct": index} for text, options, index in rows]


def question(instance):
    options = "\n".join(f"{letter}. {text}" for letter, text in zip("ABC", instance["references"], strict=True))
    return f"Question: {instance['input']}\n{options}\nAnswer:"


def scenario(form):
    return MultipleChoice(
        name=f"everyday, {form}",
        data=instances(QUESTIONS, form),
        shots_data=instances(TRAINING, "none"),
        description="The following are multiple choice questions.\n\n",
        question=question,
        choices=lambda instance: "ABC"[: len(instance["references"])],
        target=lambda instance: instance["correct"],
    )


def main(backend):
    results = [evaluate(scenario(form), backend=backend, shots=3) for form in PERTURBATIONS]
    for result in results:
        accuracy = result.metrics["acc"]
        print(f"{result.task:24} exact match {accuracy.value:.2f} ± {accuracy.stderr:.2f}")
    per_question = zip(*(result.records for result in results), strict=True)
    robust = [all(record["metrics"]["acc"] for record in records) for records in per_question]
    usage = results[-1].usage
    print(f"robust to all forms      {sum(robust) / len(robust):.2f}")
    print(f"{usage.cached_tokens} of the last form's {usage.prompt_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
