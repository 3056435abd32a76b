"""ReAct with a local tool: the model writes a sum, Python computes it, the result goes back into the text."""

import ast
import operator

from lmprog import Runtime, function, gen

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
EXAMPLE = """Question: A box holds 12 eggs. How many eggs are in 7 boxes?
Thought: I multiply the eggs in a box by the number of boxes.
Calculate: 12 * 7
Result: 84
Answer: 84

"""


def calculate(sum_text):
    """Value of an arithmetic expression, without running anything else that Python could."""

    def value(node):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        raise ValueError(f"not a sum: {sum_text!r}")

    return value(ast.parse(sum_text.strip(), mode="eval").body)


@function
def answer(s, question):
    s += EXAMPLE + f"Question: {question}\nThought:"
    s += gen("thought", max_tokens=40, temperature=0, stop="\n")
    s += "\nCalculate:"
    s += gen("sum", regex=r" \d{1,4} [-+*/] [1-9]\d{0,3}", max_tokens=16, temperature=0)
    s += f"\nResult: {calculate(s['sum']):g}\nAnswer:"
    s += gen("answer", max_tokens=16, temperature=0, stop="\n")


def main(backend):
    state = answer.run(question="A train has 9 cars with 40 seats each. How many seats are there?", backend=backend)
    print("Thought:", state["thought"].strip())
    print("Calculate:", state["sum"].strip())
    print("Answer:", state["answer"].strip())


if __name__ == "__main__":
    with Runtime("smollm2-135m") as runtime:
        main(runtime)
