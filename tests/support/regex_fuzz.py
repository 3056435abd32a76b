"""Random patterns over a small alphabet, so that they meet often, compared with `re` and with interegular."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import interegular
from interegular.fsm import anything_else

from lmprog_runtime.constraint.arena import Arena
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.errors import ConstraintTooLarge, ConstraintUnsupported
from tests.support.constraints import EVERY_BYTE

ALPHABET = "ab1_ \né世A"
ATOMS = (
    "a", "b", "1", "é", "世", "ab", ".", r"\w", r"\d", r"\s", r"\W", "[ab]", "[^a]", "[a-b1]", r"[^\s1]", r"[\w ]",
    "(?i:a)", "(?i:É)", "(?a:\\w)", r"\n", "(?s:.)",
)  # fmt: skip
LOOKS = (
    r"\b", r"\B", "^", "$", r"\A", r"\Z", "(?=a)", "(?!b)", "(?=.*1)", "(?!a|b$)", "(?<=a)", "(?<!b)", "(?m:^)",
    "(?m:$)",
)  # fmt: skip
QUANTIFIERS = ("", "*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "??")
PLAIN_ATOMS = ("a", "b", "[ab]", "[^a]", "ab", ".", "é", "[^b1]", "[a-b1]", "世")
PLAIN_QUANTIFIERS = ("", "", "*", "+", "?", "{1,3}")
"""What interegular takes: without laziness, and in few counts, which it unrolls."""


class PatternMaker:
    """Random patterns: atoms with quantifiers, in groups, choices and sequences."""

    def __init__(
        self, random: Random, atoms: Sequence[str] = ATOMS, quantifiers: Sequence[str] = QUANTIFIERS, looks: bool = True
    ) -> None:
        self._random = random
        self._atoms, self._quantifiers = atoms, quantifiers
        self._looks = LOOKS if looks else ()

    def pattern(self, parts: int = 6, groups: int = 1) -> str:
        """At most so many atoms; at most so many groups inside each other, as `re` takes years for more."""
        random = self._random
        if parts < 2 or random.random() < 0.15:
            return self._atom()
        kind = random.randrange(3 if groups else 2)
        if kind == 2:
            return f"({self.pattern(parts - 1, groups - 1)}){random.choice(self._quantifiers)}"
        count = random.randint(2, 3)
        inner = [self.pattern(parts // count, groups) for _ in range(count)]
        return f"(?:{'|'.join(inner)})" if kind == 1 else "".join(inner)

    def _atom(self) -> str:
        random = self._random
        if self._looks and random.random() < 0.25:
            return random.choice(self._looks)
        return f"(?:{random.choice(self._atoms)}){random.choice(self._quantifiers)}"


@dataclass
class Tally:
    patterns: int = 0
    refused: int = 0
    texts: int = 0
    matched: int = 0


def compare_with_re(tally: Tally, seed: int, looks: bool) -> None:
    """One random pattern: random texts, texts that the automaton makes, and those with their last character changed."""
    random = Random(seed)
    pattern = PatternMaker(random, looks=looks).pattern()
    expressions = Expressions()
    compiled = re.compile(pattern)
    tally.patterns += 1
    try:
        root = expressions.arena.seal(expressions.regex(pattern), EVERY_BYTE)
        for text in candidates(expressions.arena, root, random):
            expected = compiled.fullmatch(text) is not None
            assert expressions.matches(root, text.encode()) == expected, (seed, pattern, text)
            tally.texts += 1
            tally.matched += expected
    except (ConstraintUnsupported, ConstraintTooLarge):
        tally.refused += 1


def candidates(arena: Arena, root: int, random: Random) -> Iterator[str]:
    for _ in range(5):
        yield "".join(random.choices(ALPHABET, k=random.randint(0, 6)))
    for _ in range(2):
        made = _made_text(arena, root, random)
        if made is not None:
            yield made
            yield made[:-1] + random.choice(ALPHABET)


_BYTES = [bytes([byte]) for byte in sorted(set(ALPHABET.encode()))]


def _made_text(arena: Arena, root: int, random: Random) -> str | None:
    """A text of the alphabet that the automaton accepts, by a random walk; None when that does not come to an end."""
    state, data = root, b""
    while state and len(data) < 8:
        live = [byte for byte in _BYTES if arena.step(state, byte)]
        if arena.is_nullable(state) and (not live or random.random() < 0.3):
            return data.decode()
        if not live:
            return None
        byte = random.choice(live)
        data += byte
        state = arena.step(state, byte)
    return None


def compare_with_interegular(tally: Tally, seed: int) -> None:
    """One random pattern: the two automata walked side by side. Every pair of states that some text leads to agrees on
    whether the text ends there and whether it can go on, so the languages are equal, over one character out of each of
    interegular's classes, and several for the class of all others (of one to four bytes)."""
    random = Random(seed)
    pattern = PatternMaker(random, PLAIN_ATOMS, PLAIN_QUANTIFIERS, looks=False).pattern()
    if pattern.count("{") > 1:
        return
    fsm = interegular.parse_pattern(pattern).to_fsm()
    expressions = Expressions()
    root = expressions.arena.seal(expressions.regex(pattern), EVERY_BYTE)
    tally.patterns += 1
    tally.texts += count_equal_pairs(pattern, fsm, expressions.arena, root)


def count_equal_pairs(pattern: str, fsm: Any, arena: Arena, root: int) -> int:
    """How many pairs of states there are; AssertionError with a text that tells the two languages apart."""
    characters = list(_representatives(fsm))
    waiting = [(fsm.initial, root, "")]
    seen = {(fsm.initial, root)}
    while waiting:
        theirs, ours, text = waiting.pop()
        assert (theirs in fsm.finals) == arena.is_nullable(ours), (pattern, text)
        assert (theirs is not None and fsm.islive(theirs)) == bool(ours), (pattern, text)
        if not ours:
            continue
        for key, character in characters:
            pair = (fsm.map.get(theirs, {}).get(key), arena.step(ours, character.encode()))
            if pair not in seen:
                seen.add(pair)
                waiting.append((*pair, text + character))
    return len(seen)


def _representatives(fsm: Any) -> Iterator[tuple[int, str]]:
    for symbol, key in fsm.alphabet.items():
        if symbol is anything_else:
            yield from ((key, other) for other in "c\tß丗😀\x00\u07ff\uffff\U0010ffff" if other not in fsm.alphabet)
        else:
            yield key, symbol
