"""Few-shot evaluation: tasks as small programs, scored item by item. `lmprog eval` is its command line.

    task = MultipleChoice(
        name="capitals",
        data="capitals.jsonl",                                     # {"country": ..., "options": [...], "answer": 2}
        question="The capital of {country} is",
        choices=lambda item: item["options"],
        target=lambda item: item["answer"],
    )
    result = evaluate(task, backend=Runtime("smollm2-135m"), shots=5)
    print(result.metrics["acc_norm"])                              # Estimate(value=0.81, stderr=0.03, items=200)

Knows nothing of tokens: prompts are text or turns, and the backend makes tokens of them.
"""

from lmprog.evaluation.kinds import Generation, MultipleChoice
from lmprog.evaluation.metrics import Estimate
from lmprog.evaluation.runner import Evaluation, evaluate
from lmprog.evaluation.task import Outcome, Task

__all__ = ["Estimate", "Evaluation", "Generation", "MultipleChoice", "Outcome", "Task", "evaluate"]
