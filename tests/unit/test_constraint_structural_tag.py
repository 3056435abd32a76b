"""Structural tags: free text, and behind a trigger one of its structures, as often as the model likes."""

from __future__ import annotations

import json
import random
import re

import pytest

from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported, RequestRefused
from lmprog_runtime.request import Constraint
from tests.support.constraints import CORES, bits, brute_force, use_core

NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
CALLS = {
    "structures": [
        {"begin": "<f=add>", "schema": NUMBER, "end": "</f>"},
        {"begin": "<f=neg>", "schema": {"type": "boolean"}, "end": "</f>"},
        {"begin": "[[", "schema": {"const": "<f="}, "end": "]]"},
    ],
    "triggers": ["<f=", "[["],
}


def _grammar(tag: object, core: str = "native") -> CompiledGrammar:
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256)]
    tokens += [b"<f", b"f=a", b"=neg>t", b"x<", b"[[[", b"</f>x", b"</f><f=", "é<".encode(), b"]][[", None]
    return compile_constraint(Constraint("structural_tag", json.dumps(tag)), Vocabulary(tokens, [len(tokens) - 1], []))


def _accepts(grammar: CompiledGrammar, text: str) -> bool:
    return grammar.is_accepting(grammar.advance_bytes(grammar.start, text.encode()))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("", True),
        ("no call at all, é [ < f = <f", True),
        ('I add. <f=add>{"x": 1}</f> Done.', True),
        ('<f=add>{"x": 1}</f><f=neg>true</f>', True),
        ('[["<f="]]', True),
        ('<<f=add>{"x": 1}</f>', True),
        ("<f<f=neg>false</f>", True),
        ("[[[", False),
        ("a <f=", False),
        ("a <f=sub>", False),
        ('<f=add>{"x": "1"}</f>', False),
        ('<f=add>{"x": 1}', False),
        ('<f=add>{"x": 1}</f> and <f=', False),
        ('[["<f="', False),
    ],
)
def test_texts(core: str, text: str, is_right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    use_core(core, monkeypatch)
    assert _accepts(_grammar(CALLS), text) == is_right


STRUCTURE = re.compile(r'<f=(?:add>\{"x": -?(?:0|[1-9]\d*)(?:\.0+)?\}|neg>(?:true|false))</f>|\[\["<f="\]\]')


def _oracle(text: str) -> bool:
    """By the definition: the first trigger is where a structure starts; behind it, the same again."""
    while found := re.search(r"<f=|\[\[", text):
        structure = STRUCTURE.match(text, found.start())
        if structure is None:
            return False
        text = text[structure.end() :]
    return True


def test_random_texts_follow_the_definition() -> None:
    grammar, rng = _grammar(CALLS), random.Random(0)
    pieces = ["<", "f=", "<f=", "[", "[[", "x", "é", '<f=add>{"x": 3}</f>', "<f=neg>true</f>", '[["<f="]]', "]", "</f>"]
    right = 0
    for _ in range(3_000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 6)))
        assert _accepts(grammar, text) == _oracle(text), text
        right += _oracle(text)
    assert 600 < right < 2_700


@pytest.mark.parametrize("core", CORES)
def test_masks_equal_brute_force_and_never_end_dead(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_core(core, monkeypatch)
    grammar = _grammar(CALLS)
    vocabulary = grammar.vocabulary
    for seed in range(6):
        rng, state = random.Random(seed), grammar.start
        for _ in range(25):
            allowed = bits(grammar.mask(state), vocabulary.size)
            assert (allowed == brute_force(grammar, state, vocabulary)).all()
            calls = [i for i in allowed.nonzero()[0].tolist() if i >= 256 and i not in vocabulary.eos_ids]
            others = [i for i in allowed.nonzero()[0].tolist() if i not in vocabulary.eos_ids]
            state = grammar.advance(state, rng.choice(calls or others))
            assert state != DEAD


def test_completions_leave_no_call_open() -> None:
    grammar = _grammar(CALLS)
    state = grammar.advance_bytes(grammar.start, b'So: <f=add>{"')
    for token_id in grammar.closing_tokens(state):
        state = grammar.advance(state, token_id)
    assert grammar.is_accepting(state)
    assert grammar.tokens_to_finish(grammar.start) == 0


def _with(**changes: object) -> dict[str, object]:
    return {**CALLS, **changes}


@pytest.mark.parametrize(
    ("tag", "error", "message"),
    [
        ([], ConstraintInvalid, "JSON object"),
        (_with(more=1), ConstraintInvalid, "nothing else"),
        (_with(triggers=[]), ConstraintInvalid, "at least one"),
        (_with(triggers=[""]), ConstraintInvalid, "none of them empty"),
        (_with(triggers=["<f="]), ConstraintInvalid, "structures/2 starts with none"),
        (_with(triggers=["<f=", "[[", "??"]), ConstraintInvalid, "No structure begins"),
        (_with(triggers=["<f=", "[[", "a[["]), ConstraintInvalid, "always comes first"),
        (_with(triggers=["<f=", "[[", "y" * 5_000]), ConstraintTooLarge, "4096 bytes"),
        (_with(structures=[{"begin": "<f=", "end": ""}]), ConstraintInvalid, "structures/0"),
        (_with(structures=[{"begin": 1, "schema": {}, "end": ""}]), ConstraintInvalid, "must be texts"),
        (
            _with(structures=[{"begin": "<f=", "schema": {"type": 5}, "end": ""}]),
            ConstraintInvalid,
            "structures/0: type",
        ),
        (
            _with(structures=[{"begin": "<f=", "schema": {"uniqueItems": True}, "end": ""}]),
            ConstraintUnsupported,
            "structures/0.*uniqueItems",
        ),
    ],
)
def test_errors_name_the_part(tag: object, error: type[RequestRefused], message: str) -> None:
    with pytest.raises(error, match=message):
        _grammar(tag)


def test_text_that_is_no_json() -> None:
    with pytest.raises(ConstraintInvalid, match="structural tag is not JSON"):
        compile_constraint(Constraint("structural_tag", "{"), Vocabulary([b"a", None], [1], []))
