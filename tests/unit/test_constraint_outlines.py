"""outlines-core as a backend and as a second opinion: equal to ours where its semantics are right, else refused."""

from __future__ import annotations

import json
import random

import pytest

from lmprog_runtime.constraint.base import DEAD, FAR
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported
from lmprog_runtime.request import Constraint
from tests.support.constraints import bits

pytest.importorskip("outlines_core", reason="outlines-core is not installed")

from lmprog_runtime.constraint.outlines_backend import OutlinesCompiler, OutlinesGrammar, compile_with_outlines


def _vocabulary() -> Vocabulary:
    letters: list[bytes | None] = [bytes([byte]) for byte in range(0x20, 0x7F)]
    letters += [b"ab", b"abc", b'": ', b'{"', b", ", b"12", b"true", "é".encode(), "é".encode()[:1], "é".encode()[1:]]
    return Vocabulary([*letters, None, None], [len(letters), len(letters) + 1], [])


RIGHT = ["a", "ab|cd", "[a-c]{2,4}", "(ab)*c", "a?b?c?d", "[0-9]{3}-[0-9]{4}", "é+x", "[^a-z]{1,2}z", "[ab]+c"]
WRONG = {"(a|b)*abb": "b'abb'", "a|ab": "b''", "ab|abc|x": "b''"}  # and behind which text


@pytest.mark.parametrize("pattern", RIGHT)
def test_patterns_that_both_understand_alike(pattern: str) -> None:
    assert isinstance(compile_with_outlines(Constraint("regex", pattern), _vocabulary()), OutlinesGrammar)


@pytest.mark.parametrize("pattern", WRONG)
def test_patterns_that_it_gets_wrong_are_refused(pattern: str) -> None:
    with pytest.raises(ConstraintUnsupported, match=f"wrong: behind {WRONG[pattern]} it does not allow"):
        compile_with_outlines(Constraint("regex", pattern), _vocabulary())


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 10}, "outlines-core gets this constraint wrong: behind b'"),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 1}, "outlines-core"),
        ({"not": {"type": "null"}}, "outlines-core"),
    ],
)
def test_schemas_that_it_gets_wrong_are_refused(schema: object, text: str) -> None:
    with pytest.raises((ConstraintUnsupported, ConstraintTooLarge), match=text):
        compile_with_outlines(Constraint("json_schema", json.dumps(schema)), _vocabulary())


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "boolean"},
        {"enum": ["ab", "b", 1, None]},
        {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"const": "x"}}, "required": ["a", "b"],
         "additionalProperties": False},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    ],
)  # fmt: skip
def test_schemas_that_it_gets_right_generate_valid_instances(schema: dict[str, object]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    grammar = compile_with_outlines(Constraint("json_schema", json.dumps(schema)), _vocabulary())
    for seed in range(20):
        text = _random_output(grammar, random.Random(seed))
        jsonschema.validate(json.loads(text), schema)


def _random_output(grammar: OutlinesGrammar, rng: random.Random) -> str:
    state, text = grammar.start, b""
    while True:
        token_id = rng.choice(bits(grammar.mask(state), grammar.vocabulary.size).nonzero()[0].tolist())
        if token_id in grammar.vocabulary.eos_ids:
            assert grammar.advance(state, token_id) == state
            return text.decode()
        text += grammar.vocabulary.token_bytes[token_id]
        state = grammar.advance(state, token_id)
        assert state != DEAD


@pytest.mark.parametrize(
    ("whitespace", "written"),
    [
        ("compact", [True, False, False, False, False]),
        ("dense", [False, True, False, False, False]),
        ("[ ]?", [True, True, True, False, False]),
    ],
)
def test_json_is_written_in_the_style_that_is_asked_for(whitespace: str, written: list[bool]) -> None:
    booleans = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}
    grammar = compile_with_outlines(_members(a=booleans, b={"type": "null"}, whitespace=whitespace), _letters())
    texts = ['{"a": [true, false], "b": null}', '{"a":[true,false],"b":null}', '{ "a":[ true,false ], "b": null }',
             '{"a":  [true, false], "b": null}', '{"a":\n[true, false], "b": null}']  # fmt: skip
    assert [_accepts(grammar, text) for text in texts] == written


def test_flexible_json_may_be_indented() -> None:
    grammar = compile_with_outlines(_members(a={"type": "null"}, whitespace="flexible"), _letters())
    assert all(_accepts(grammar, text) for text in ('{"a":null}', '{ "a": null }', '{\n    "a": null\r\n}'))
    assert not _accepts(grammar, '{  "a": null}')


def _members(*, whitespace: str, **members: object) -> Constraint:
    schema = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    return Constraint("json_schema", json.dumps(schema), whitespace)


def _letters() -> Vocabulary:
    return Vocabulary([bytes([byte]) for byte in range(0x7F)] + [None], [0x7F], [])


def _accepts(grammar: OutlinesGrammar, text: str) -> bool:
    state = grammar.start
    for byte in text.encode():
        state = grammar.advance(state, byte)
    return grammar.is_accepting(state)


def test_what_the_engine_asks_of_a_grammar() -> None:
    grammar = compile_with_outlines(Constraint("choices", '["ab", "cd", "x"]'), _vocabulary())
    a, ab, x = (ord(letter) - 0x20 for letter in "abx")
    assert grammar.advance(grammar.start, ab) == DEAD
    inside = grammar.advance(grammar.start, a)
    assert grammar.forced_tokens(inside) == [ab]
    end = grammar.advance(grammar.start, x)
    assert grammar.is_accepting(end)
    assert grammar.is_final(end)
    assert (grammar.tokens_to_finish(end), grammar.tokens_to_finish(inside)) == (0, FAR)
    assert grammar.closing_tokens(inside) == grammar.guessed_tokens(inside) == []
    with pytest.raises(ConstraintUnsupported, match="heal=False"):
        grammar.advance_bytes(inside, b"b")


@pytest.mark.parametrize(
    ("constraint", "error", "text"),
    [
        (Constraint("grammar", 'start: "a"'), ConstraintUnsupported, "no grammar constraints"),
        (Constraint("regex", "(?=a)a"), ConstraintUnsupported, "outlines-core refuses"),
        (Constraint("regex", "[a-b]{400}"), ConstraintTooLarge, "300 states"),
        (Constraint("json_schema", "true", member_order="any"), ConstraintUnsupported, "no member_order='any'; leave"),
        (Constraint("json_schema", "true", formats="annotate"), ConstraintUnsupported, "no formats='annotate'; leave"),
        (Constraint("json_schema", "true", max_digits=3), ConstraintUnsupported, "no max_digits=3; leave"),
        (Constraint("json_schema", "true", max_items=3), ConstraintUnsupported, "no max_items=3; leave"),
        (
            Constraint("json_schema", '{"type": "null"}', whitespace="x"),
            ConstraintInvalid,
            "a regular expression that matches bl",
        ),
    ],
)
def test_refusals(constraint: Constraint, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        compile_with_outlines(constraint, _vocabulary())


def test_the_engines_compiler_refuses_to_heal() -> None:
    compiler = OutlinesCompiler(_vocabulary())
    grammar = compiler(Constraint("regex", "ab"), b"")
    assert grammar.mask(grammar.start).any()
    for constraint in (None, Constraint("regex", "ab")):
        with pytest.raises(ConstraintUnsupported, match="heal=False"):
            compiler(constraint, b" ")
