"""Random schemas and instances over small alphabets, so that they meet often, and random texts of an expression."""

from __future__ import annotations

from random import Random
from typing import Any

from lmprog_runtime.constraint.expressions import Expressions

_NAMES = ("a", "b", "ab", "é")
_TEXTS = ("", "a", "b", "ab", "ba", "aab", "é", 'q"\\')
_NUMBERS = (-3, -1, 0, 1, 2, 3, 4, 6, 10, 0.5, 1.5, -0.5, 2.5, 1.0)
_PATTERNS = ("a", "^a", "b$", "^[ab]+$", "^.{2}$", "a.*b", "^(?:a|ab)$", "[^a]", "^$")
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


class SchemaMaker:
    """Random schemas. `features` are the groups of keywords to draw from."""

    def __init__(self, random: Random, features: tuple[str, ...]) -> None:
        self._random = random
        self._features = features

    def schema(self, depth: int = 2) -> Any:
        random = self._random
        if random.random() < 0.06:
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
        return random.choice(({"type": random.choice(_TYPES)}, {"const": instance(random, 0)}, True, {"minimum": 1}))

    def _constants(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        if random.random() < 0.4:
            made["const"] = instance(random, 1)
        else:
            made["enum"] = [instance(random, 1) for _ in range(random.randrange(1, 5))]

    def _numbers(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
        made[keyword] = random.choice((1, 2, 3, 0.5)) if keyword == "multipleOf" else random.choice(_NUMBERS)

    def _strings(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("minLength", "maxLength", "pattern"))
        made[keyword] = random.choice(_PATTERNS) if keyword == "pattern" else random.randrange(4)

    def _arrays(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("items", "prefixItems", "minItems", "maxItems", "contains"))
        if keyword == "prefixItems":
            made[keyword] = [self._below(depth) for _ in range(random.randrange(1, 3))]
        elif keyword in ("minItems", "maxItems"):
            made[keyword] = random.randrange(4)
        else:
            made[keyword] = self._below(depth)
        if keyword == "contains" and random.random() < 0.5:
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
        if random.random() < 0.5:
            patterns = random.sample(_PATTERNS, random.randrange(1, 3))
            made["patternProperties"] = {pattern: self._below(depth) for pattern in patterns}
        else:
            kind = random.choice(("pattern", "maxLength", "enum"))
            choices = {"pattern": random.choice(_PATTERNS), "maxLength": 1, "enum": random.sample(_NAMES, 2)}
            made["propertyNames"] = {kind: choices[kind]}

    def _logic(self, made: dict[str, Any], depth: int) -> None:
        random = self._random
        keyword = random.choice(("allOf", "anyOf", "oneOf", "not", "if"))
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
        if random.random() < 0.5:
            made["dependentRequired"] = {name: [other]}
        else:
            made["dependentSchemas"] = {name: self._below(depth)}

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
        state = random.choice(list(live))
        return state, bytes([random.choice(live[state])])

    def _successors(self, state: int) -> dict[int, bytes]:
        """Bytes by the state that they lead to. Of the bytes beyond ASCII a few will do."""
        found = self._live.get(state)
        if found is None:
            found = {}
            for byte in (*range(0x20, 0x7F), *b"\n\t", *"é😀".encode()):
                after = self._arena.step(state, bytes([byte]))
                if after != Expressions.EMPTY:
                    found[after] = found.get(after, b"") + bytes([byte])
            self._live[state] = found
        return found
