"""Constraints without a model: both automaton cores, small vocabularies, oracles."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from lmprog_runtime.constraint import arena as arenas
from lmprog_runtime.constraint.arena import Arena
from lmprog_runtime.constraint.base import DEAD, Grammar
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.fallback.arena import PythonArena
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.limits import DEFAULT_LIMITS, Limits
from lmprog_runtime.constraint.native import NativeArena, load_library
from lmprog_runtime.constraint.vocabulary import Vocabulary

CORES = ("native", "python")
EVERY_BYTE = b"\xff" * 32


def new_arena(core: str, limits: Limits = DEFAULT_LIMITS) -> Arena:
    if core == "python":
        return PythonArena(limits)
    library = load_library()
    if library is None:
        pytest.skip("the C++ core is not built")
    return NativeArena(library, limits)


def use_core(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `compile_constraint` work with one of the cores."""
    if core == "python":
        monkeypatch.setattr(arenas, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("the C++ core is not built")


def regex_grammar(core: str, pattern: str, vocabulary: Vocabulary) -> CompiledGrammar:
    expressions = Expressions(arena=new_arena(core))
    root = expressions.arena.seal(expressions.regex(pattern), vocabulary.producible)
    return CompiledGrammar(expressions.arena, root, vocabulary)


def small_vocabulary(seed: int, alphabet: str = 'ab1 ,"\n\\é世😀', merged: int = 60) -> Vocabulary:
    """All bytes of an alphabet, random longer tokens (whole and cut characters), a double, two ends, one special."""
    rng = random.Random(seed)
    text = alphabet.encode()
    tokens: list[bytes | None] = [bytes([byte]) for byte in sorted(set(text))]
    for _ in range(merged):
        spelled = "".join(rng.choices(alphabet, k=rng.randint(1, 5))).encode()
        tokens.append(spelled[rng.choice((0, 0, 1)) :] or b"a")
    tokens += [b"ab", b"ab", b"", None, None, b"<special>"]
    count = len(tokens)
    return Vocabulary(tokens, eos_ids=[count - 3, count - 2], special_ids=[count - 1])


def bits(mask: NDArray[np.uint32], size: int) -> NDArray[np.bool_]:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:size].astype(bool)


def brute_force(grammar: Grammar, state: int, vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """A state's mask by definition: token by token, byte by byte."""
    allowed = np.array([bool(data) and grammar.advance_bytes(state, data) != DEAD for data in vocabulary.token_bytes])
    allowed[list(vocabulary.eos_ids)] = grammar.is_accepting(state)
    return allowed


def random_text(arena: Arena, root: int, rng: random.Random, most: int = 60) -> bytes | None:
    """A text that a sealed automaton accepts, by a random walk; None when the walk did not come to an end."""
    state, data = root, bytearray()
    while len(data) < most:
        choices = [byte for byte in range(256) if arena.step(state, bytes([byte]))]
        if arena.is_nullable(state) and (not choices or rng.random() < 0.3):
            return bytes(data)
        byte = rng.choice(choices)
        data.append(byte)
        state = arena.step(state, bytes([byte]))
    return None
