"""Structural tags: free text; behind a trigger, one of the structures that begin with it; then free text again.

Tool calls in the middle of an answer are the usual case. The source is JSON:

    {"structures": [{"begin": "<function=add>", "schema": {...}, "end": "</function>"}], "triggers": ["<function="]}

Free text is any text up to the first trigger, which is where a structure starts: the automaton of Aho and Corasick
("Efficient string matching", 1975), as rules that refer to each other. What a structure holds is JSON of its schema.
Triggers are found in the text of ordinary tokens; special ids are never allowed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema import SchemaOptions, compile_value
from lmprog_runtime.constraint.json_schema.values import parse
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, RequestRefused

MOST_TRIGGER_BYTES = 4_096
"""Of all triggers together: each is a rule of the free text."""

_KEYS = {"structures", "triggers"}
_STRUCTURE_KEYS = {"begin", "schema", "end"}


class _Structure(NamedTuple):
    begin: bytes
    content: int
    end: bytes


def compile_structural_tag(source: str, expressions: Expressions, options: SchemaOptions) -> int:
    """The expression of a structural tag. ConstraintInvalid names the part that is wrong; a schema's own errors too."""
    document = parse(source, "structural tag")
    if not isinstance(document, dict) or set(document) != _KEYS:
        raise ConstraintInvalid("A structural tag is a JSON object of `structures` and `triggers`, and nothing else.")
    triggers = _triggers(document["triggers"])
    structures: dict[bytes, list[_Structure]] = {trigger: [] for trigger in triggers}
    for index, structure in enumerate(_list(document["structures"], "structures")):
        read = _structure(structure, f"structures/{index}", expressions, options)
        structures[_trigger_of(read.begin, triggers, index)].append(read)
    for trigger, found in structures.items():
        if not found:
            raise ConstraintInvalid(f"No structure begins with the trigger {trigger.decode()!r}; add one or drop it.")
    return _Rules(expressions, structures).free_text()


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ConstraintInvalid(f"{name} of a structural tag must be a list of at least one element.")
    return value


def _triggers(value: Any) -> list[bytes]:
    texts = _list(value, "triggers")
    if not all(isinstance(text, str) and text for text in texts):
        raise ConstraintInvalid("triggers of a structural tag must be texts, none of them empty.")
    triggers = sorted({text.encode() for text in texts})
    for trigger in triggers:
        within = next((other for other in triggers if other != trigger and other in trigger), None)
        if within is not None:
            raise ConstraintInvalid(
                f"The trigger {trigger.decode()!r} contains the trigger {within.decode()!r}, which always comes first; "
                "drop the longer one."
            )
    if sum(map(len, triggers)) > MOST_TRIGGER_BYTES:
        raise ConstraintTooLarge(f"The triggers have more than {MOST_TRIGGER_BYTES} bytes together; use shorter ones.")
    return triggers


def _structure(value: Any, where: str, expressions: Expressions, options: SchemaOptions) -> _Structure:
    if not isinstance(value, dict) or set(value) != _STRUCTURE_KEYS:
        raise ConstraintInvalid(f"{where} must be an object of `begin`, `schema` and `end`, and nothing else.")
    if not isinstance(value["begin"], str) or not isinstance(value["end"], str):
        raise ConstraintInvalid(f"`begin` and `end` of {where} must be texts.")
    try:
        content = compile_value(value["schema"], expressions, options)
    except RequestRefused as error:
        raise type(error)(f"{where}: {error}") from None
    return _Structure(value["begin"].encode(), content, value["end"].encode())


def _trigger_of(begin: bytes, triggers: list[bytes], index: int) -> bytes:
    for trigger in triggers:
        if begin.startswith(trigger):
            return trigger
    raise ConstraintInvalid(
        f"`begin` of structures/{index} starts with none of the triggers, so it could never be reached; add its start."
    )


class _Rules:
    """One rule for each beginning of a trigger: the free text that goes on behind it."""

    def __init__(self, expressions: Expressions, structures: dict[bytes, list[_Structure]]) -> None:
        self._e, self._structures = expressions, structures
        beginnings = {trigger[:length] for trigger in structures for length in range(len(trigger))}
        self._rules = {beginning: expressions.reference(nullable=True) for beginning in sorted(beginnings)}
        self._letters = {byte for trigger in structures for byte in trigger}

    def free_text(self) -> int:
        behind = {trigger: self._behind(trigger) for trigger in self._structures}
        for beginning, rule in self._rules.items():
            self._e.define(rule, self._rule(beginning, behind))
        return self._rules[b""]

    def _behind(self, trigger: bytes) -> int:
        """The rest of the structures that begin with a trigger, and free text again."""
        e = self._e
        rests = [
            e.concat(e.literal(begin.removeprefix(trigger)), content, e.literal(end))
            for begin, content, end in self._structures[trigger]
        ]
        return e.concat(e.alternate(rests), self._rules[b""])

    def _rule(self, beginning: bytes, behind: dict[bytes, int]) -> int:
        e = self._e
        following: dict[int, list[int]] = defaultdict(list)  # rule: the bytes that lead to it
        for byte in range(256):
            text = beginning + bytes([byte]) if byte in self._letters else b""
            found = next((trigger for trigger in behind if text.endswith(trigger)), None)
            following[self._rules[self._longest(text)] if found is None else behind[found]].append(byte)
        steps = [e.concat(e.byte_set(bytes(letters)), rule) for rule, letters in following.items()]
        return e.alternate([e.EPSILON, *steps])

    def _longest(self, text: bytes) -> bytes:
        """The longest end of a text that begins a trigger."""
        return next(text[at:] for at in range(len(text) + 1) if text[at:] in self._rules)
