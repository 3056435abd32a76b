"""Random schemas and instances over small alphabets, so that they meet often, and random texts of an expression."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

import jsonschema

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema import Order, compile_schema
from lmprog_runtime.errors import RequestRefused
from tests.support.schema_suites import Writer

_NAMES = ("a", "b", "ab", "é")
_TEXTS = ("", "a", "b", "ab", "ba", "aab", "é", 'q"\\')
_NUMBERS = (-3, -1, 0, 1, 2, 3, 4, 6, 10, 0.5, 1.5, -0.5, 2.5, 1.0)
_PATTERNS = ("a", "^a", "b$", "^[ab]+$", "^.{2}$", "a.*b", "^(?:a|ab)$", "[^a]", "^$")
_DEFINITIONS = ("p", "q")
_TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")


def instance(random: Random, depth: int = 2) -> Any:
    """A small JSON value."""
    kind = random.randrange(8 if depth else 6)
    if kind < 2:
        return random.choice(_NUMBERS)
    if kind < 4:
        return random.choice(_TEXTS)
    if kind < 6:
        return random.choice((None, True, False))
    if kind == 6:
        return [instance(random, depth - 1) for _ in range(random.randrange(4))]
    names = random.sample(_NAMES, random.randrange(4))
    return {name: instance(random, depth - 1) for name in names}


SCHEMA_URIS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}

FEATURES = (
    *("constants", "numbers", "strings", "arrays", "unique", "objects", "names", "logic", "dependent", "references"),
)
"""Groups of keywords that every draft has."""


class SchemaMaker:
    """Random schemas of a draft. `features` are the groups of keywords to draw from."""

    def __init__(
        self, random: Random, features: tuple[str, ...] = (*FEATURES, "unevaluated"), draft: int = 2020
    ) -> None:
        self._random = random
        self._features = features
        self._draft = draft

    def declared(self, depth: int = 2) -> Any:
        """A random schema that says which draft it follows."""
        made = self.schema(depth)
        if not isinstance(made, dict):
            return made
        definitions = {name: self.schema(1) for name in _DEFINITIONS}
        return {"$schema": SCHEMA_URIS[self._draft], **made, "definitions": definitions}

    def schema(self, depth: int = 2) -> Any:
        random = self._random
        if random.random() < 0.06 and self._draft > 4:
            return random.random() < 0.7
        made: dict[str, Any] = {}
        if random.random() < 0.5:
            count = 1 if random.random() < 0.7 else 2
            made["type"] = random.sample(_TYPES, count) if count > 1 else random.choice(_TYPES)
        for _ in range(random.randrange(1, 4)):
            feature = random.choice(self._features)
            getattr(self, f"_{feature}")(made, depth)
        return made

    def _below(self, depth: int) -> Any:
        return self.schema(depth - 1) if depth > 0 else self._leaf()

    def _leaf(self) -> Any:
        random = self._random
        return random.choice(({"type": random.choice(_TYPES)}, {"enum": [instance(random, 0)]}, {}, {"minimum": 1}))

    def _constants(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        if random.random() < 0.4 and self._draft > 4:
            made["const"] = instance(random, 1)
        else:
            made["enum"] = [instance(random, 1) for _ in range(random.randrange(1, 5))]

    def _numbers(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
        made[keyword] = random.choice((1, 2, 3, 0.5)) if keyword == "multipleOf" else random.choice(_NUMBERS)
        if self._draft == 4 and keyword.startswith("exclusive"):
            made[keyword.removeprefix("exclusive").lower()] = made[keyword]
            made[keyword] = random.random() < 0.7

    def _strings(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("minLength", "maxLength", "pattern"))
        made[keyword] = random.choice(_PATTERNS) if keyword == "pattern" else random.randrange(4)

    def _arrays(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(
            ("items", "prefixItems", "minItems", "maxItems", "contains" if self._draft > 4 else "items")
        )
        if keyword == "prefixItems":
            prefix = [self._below(depth) for _ in range(random.randrange(1, 3))]
            made[keyword if self._draft == 2020 else "items"] = prefix
            if self._draft < 2020 and random.random() < 0.5:
                made["additionalItems"] = self._below(depth)
        elif keyword in ("minItems", "maxItems"):
            made[keyword] = random.randrange(4)
        else:
            made[keyword] = self._below(depth)
        if keyword == "contains" and random.random() < 0.5 and self._draft >= 2019:
            made[random.choice(("minContains", "maxContains"))] = random.randrange(3)

    def _unique(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        made["items"] = {"enum": random.sample(("a", "b", 1, 2, None, True), random.randrange(1, 5))}
        made["uniqueItems"] = True

    def _objects(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("properties", "properties", "required", "additionalProperties", "maxProperties"))
        if keyword == "properties":
            names = random.sample(_NAMES, random.randrange(1, 4))
            made[keyword] = {name: self._below(depth) for name in names}
        elif keyword == "required":
            made[keyword] = random.sample(_NAMES, random.randrange(1, 3))
        elif keyword == "maxProperties":
            made[random.choice((keyword, "minProperties"))] = random.randrange(3)
        else:
            made[keyword] = self._below(depth)

    def _names(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        if random.random() < 0.5 or self._draft == 4:
            patterns = random.sample(_PATTERNS, random.randrange(1, 3))
            made["patternProperties"] = {pattern: self._below(depth) for pattern in patterns}
        else:
            kind = random.choice(("pattern", "maxLength", "enum"))
            choices = {"pattern": random.choice(_PATTERNS), "maxLength": 1, "enum": random.sample(_NAMES, 2)}
            made["propertyNames"] = {kind: choices[kind]}

    def _logic(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("allOf", "anyOf", "oneOf", "not", "if" if self._draft >= 7 else "not"))
        if keyword == "not":
            made[keyword] = self._below(depth)
        elif keyword == "if":
            for part in ("if", "then", "else"):
                made[part] = self._below(depth)
        else:
            made[keyword] = [self._below(depth) for _ in range(random.randrange(1, 4))]

    def _dependent(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        name, other = random.sample(_NAMES, 2)
        by_name = random.random() < 0.5
        needed = [other] if by_name else self._below(depth)
        keyword = "dependentRequired" if by_name else "dependentSchemas"
        made[keyword if self._draft >= 2019 else "dependencies"] = {name: needed}

    def _references(self, made: dict[str, Any], depth: int) -> None:
        made["$ref"] = f"#/definitions/{self._random.choice(_DEFINITIONS)}"

    def _unevaluated(self, made: dict[str, Any], depth: int) -> None:
        keyword = self._random.choice(("unevaluatedProperties", "unevaluatedItems"))
        made[keyword] = self._random.choice((False, {"type": "string"}))


class Sampler:
    """Random texts of a sealed expression, by a walk over the live bytes of each state."""

    def __init__(self, expressions: Expressions, root: int) -> None:
        self._arena = expressions.arena
        self._start = root
        self._live: dict[int, dict[int, bytes]] = {}

    def text(self, random: Random, length: int = 60) -> str | None:
        """A random text; beyond `length` bytes it closes what it can. None when it does not come to an end."""
        state, text = self._start, b""
        while len(text) < length + 200:
            live = self._successors(state)
            if self._arena.is_nullable(state) and (not live or random.random() < 0.3 or len(text) > length):
                return text.decode()
            state, byte = self._choose(live, random, len(text) > length)
            text += byte
        return None

    def _choose(self, live: dict[int, bytes], random: Random, is_closing: bool) -> tuple[int, bytes]:
        if is_closing:
            for closer in b'"]}':
                for state, found in live.items():
                    if closer in found:
                        return state, bytes([closer])
        # by bytes mostly, so that strings are not all escapes; by states at times, so that rare ways are taken
        weights = [len(found) for found in live.values()] if random.random() < 0.7 else None
        (state,) = random.choices(list(live), weights)
        return state, bytes([random.choice(live[state])])

    def _successors(self, state: int) -> dict[int, bytes]:
        """Bytes by the state that they lead to. Of the bytes beyond ASCII a few will do, where they do."""
        found = self._live.get(state)
        if found is None:
            few = bytes((*range(0x20, 0x7F), *b"\n\t", *"é😀".encode()))
            found = self._live[state] = self._leading_on(state, few) or self._leading_on(state, bytes(range(256)))
        return found

    def _leading_on(self, state: int, data: bytes) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for byte in data:
            after = self._arena.step(state, bytes([byte]))
            if after != Expressions.EMPTY:
                found[after] = found.get(after, b"") + bytes([byte])
        return found


VALIDATORS: dict[int, Any] = {
    4: jsonschema.Draft4Validator,
    6: jsonschema.Draft6Validator,
    7: jsonschema.Draft7Validator,
    2019: jsonschema.Draft201909Validator,
    2020: jsonschema.Draft202012Validator,
}

_TEXTS_PER_SCHEMA, _INSTANCES_PER_SCHEMA, _INSTANCES_WITHOUT = 6, 14, 60


@dataclass
class Tally:
    """What a run of the fuzzer has looked at, and where it found the two to differ."""

    schemas: int = 0
    refused: int = 0
    instances: int = 0
    texts: int = 0
    differences: list[str] = field(default_factory=list)


def random_schema(random: Random, draft: int = 2020) -> Any:
    # jsonschema lets `contains` evaluate items in 2019-09 already, which the standard does not
    features = (*FEATURES, "unevaluated") if draft == 2020 else FEATURES
    return SchemaMaker(random, features, draft).declared()


def compare(tally: Tally, seed: int, draft: int = 2020, order: Order = "schema") -> None:
    """One random schema against `jsonschema`: instances, and random texts of the expression."""
    random = Random(seed)
    schema = random_schema(random, draft)
    validator = VALIDATORS[draft](schema)
    expressions = Expressions()
    tally.schemas += 1
    try:
        root = expressions.arena.seal(compile_schema(json.dumps(schema), expressions, order=order), b"\xff" * 32)
    except RequestRefused as refusal:
        tally.refused += 1
        if "No JSON value" in str(refusal):
            _check_emptiness(tally, random, validator, f"{seed}/{draft}: {json.dumps(schema)}")
        return
    name = f"{seed}/{draft}/{order}: {json.dumps(schema, ensure_ascii=False)}"
    writer = Writer(expressions, root)
    accepts = writer.accepts if order == "any" else writer.accepts_some_order
    for value in (instance(random) for _ in range(_INSTANCES_PER_SCHEMA)):
        tally.instances += 1
        if label(validator, value) not in (None, accepts(value)):
            tally.differences.append(f"{name} on {json.dumps(value, ensure_ascii=False)}")
    _walk(tally, Sampler(expressions, root), random, validator, name)


def _check_emptiness(tally: Tally, random: Random, validator: Any, name: str) -> None:
    for value in (instance(random) for _ in range(_INSTANCES_WITHOUT)):
        tally.instances += 1
        if label(validator, value):
            tally.differences.append(f"{name} is said to have no instance, but has {json.dumps(value)}")


def _walk(tally: Tally, sampler: Sampler, random: Random, validator: Any, name: str) -> None:
    for _ in range(_TEXTS_PER_SCHEMA):
        text = sampler.text(random)
        if text is None or not is_comparable(text):
            continue
        tally.texts += 1
        if label(validator, json.loads(text)) is False:
            tally.differences.append(f"{name} lets through {text}")


def label(validator: Any, value: Any) -> bool | None:
    """Whether jsonschema holds a value valid; None where a schema applies to itself, which it does not survive."""
    try:
        return bool(validator.is_valid(value))
    except RecursionError:
        return None


def is_comparable(text: str) -> bool:
    """Whether jsonschema can tell: it computes in floats, and its `$`, `.` and `\\s` are those of Python's `re`."""
    return not re.search(r"[\d.]{16}|[eE][+-]?\d{2}|\\[nru]", text)
