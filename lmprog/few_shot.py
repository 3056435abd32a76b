"""Examples in prompts, as text or as turns of a chat.

    s += few_shot(examples, "Q: {question}\\nA: {answer}\\n\\n") + f"Q: {question}\\nA:" + gen("answer", stop="\\n")
    s += system("Answer shortly.") + few_shot_turns(examples, "{question}", "{answer}") + user(question)

Only the template has fields, as in `str.format`; what an example puts into them is literal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from lmprog.errors import InvalidArgument
from lmprog.language import assistant, user
from lmprog.nodes import Block, as_node

Template: TypeAlias = "str | Callable[[Mapping[str, Any]], str]"


def few_shot(examples: Iterable[Mapping[str, Any]], template: Template, *, separator: str = "") -> str:
    """The template filled with each example, one after the other, `separator` between them.

    template: a format text whose fields are keys of the examples, or a function from an example to text.
    """
    return separator.join(_filled(template, index, example) for index, example in enumerate(examples))


def few_shot_turns(examples: Iterable[Mapping[str, Any]], question: Template, answer: Template) -> Block:
    """For each example a user turn with the question and an assistant turn with the answer."""
    pairs = [
        [user(_filled(question, index, example)), assistant(_filled(answer, index, example))]
        for index, example in enumerate(examples)
    ]
    block = as_node(pairs)
    assert isinstance(block, Block)
    return block


def _filled(template: Template, index: int, example: Mapping[str, Any]) -> str:
    if callable(template):
        return template(example)
    try:
        return template.format_map(example)
    except KeyError as error:
        has = ", ".join(map(repr, example)) or "nothing"
        raise InvalidArgument(f"The template has a field {error.args[0]!r}; example {index} has {has}.") from None
    except (ValueError, IndexError) as error:
        raise InvalidArgument(
            f"The template {template!r} is not a format text: {error};", hint="write {{ and }} for literal braces."
        ) from None
