"""The case list's constraint cases (C01 to C16) that need no engine, each under its number: their inputs, all of them.
The engine's and the server's sides are in tests/engine/test_constrained_engine.py and tests/server."""

from __future__ import annotations

import gc
import json
import random
import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.native import load_library
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import (
    ConstraintInvalid,
    ConstraintTooLarge,
    ConstraintUnreachable,
    ConstraintUnsupported,
    RequestRefused,
)
from lmprog_runtime.request import Constraint
from tests.support.constraints import bits, brute_force

SECONDS = 2.0  # of processor time: the machine may be busy
EMOJI = "😀"

needs_core = pytest.mark.skipif(load_library() is None, reason="the limits in seconds are those of the C++ core")


def _vocabulary(without: bytes = b"") -> Vocabulary:
    """All bytes but some, parts of characters, tokens that mix a blank and half a character, two ends, a special id."""
    tokens: list[bytes | None] = [bytes([byte]) for byte in range(256) if byte not in without]
    half = EMOJI.encode()
    tokens += [b" " + half[:2], b" " + half[:3], half[:3], half[2:], " é".encode()[:2], b"ab", b'": ', b"\n\n", b"  "]
    return Vocabulary([*tokens, None, None, b"<|im_end|>"], [len(tokens), len(tokens) + 1], [len(tokens) + 2])


def _grammar(kind: str, source: object, vocabulary: Vocabulary | None = None, **more: str) -> CompiledGrammar:
    text = source if isinstance(source, str) else json.dumps(source)
    return compile_constraint(Constraint(kind, text, **more), vocabulary or _vocabulary())  # type: ignore[arg-type]


def _accepts(grammar: CompiledGrammar, text: str) -> bool:
    return grammar.is_accepting(grammar.advance_bytes(grammar.start, text.encode()))


def _schema_accepts(schema: object, value: object, **more: str) -> bool:
    return _accepts(_grammar("json_schema", schema, **more), json.dumps(value, ensure_ascii=False))


def _output(grammar: CompiledGrammar, prefers: Callable[[bytes], bool], seed: int, most: int = 300) -> bytes | None:
    """What a model writes that takes a token it prefers wherever it may, else any, and ends where it may."""
    rng, state, text = random.Random(seed), grammar.start, b""
    for _ in range(most):
        allowed = bits(grammar.mask(state), grammar.vocabulary.size).nonzero()[0].tolist()
        assert allowed, "a dead end"
        liked = [i for i in allowed if prefers(grammar.vocabulary.token_bytes[i])]
        if not liked and grammar.is_accepting(state):
            return text
        token_id = rng.choice(liked or [i for i in allowed if i not in grammar.vocabulary.eos_ids])
        text += grammar.vocabulary.token_bytes[token_id]
        state = grammar.advance(state, token_id)
    return None


@contextmanager
def _in_time(seconds: float = SECONDS) -> Iterator[None]:
    start = time.thread_time()
    yield
    assert time.thread_time() - start < seconds


# -- C01 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["ab**", "[a-", "(x", "(?P<n", "x{3,1}", r"\p{Nope}"])
def test_c01_bad_patterns_are_refused_with_their_position(pattern: str) -> None:
    vocabulary = _vocabulary()
    for _ in range(2):  # the second from the cache
        with pytest.raises(RequestRefused, match=r"\d"), _in_time(1.0):
            _grammar("regex", pattern, vocabulary)
    assert _accepts(_grammar("regex", "a", vocabulary), "a"), "the next one is fine"


@pytest.mark.parametrize("schema", ['{"type": "strng"}', '{"type": 5}', "[1]", "{nonsense"])
def test_c01_bad_schemas_are_refused_with_a_reason(schema: str) -> None:
    with pytest.raises(ConstraintInvalid), _in_time(1.0):
        _grammar("json_schema", schema)


# -- C03 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["[😀-🙏]+", "é+", ".{1,3}", " ?😀", "[^a]"])
def test_c03_characters_split_over_tokens(pattern: str) -> None:
    vocabulary = _vocabulary()
    grammar = _grammar("regex", pattern, vocabulary)
    state = grammar.start
    for byte in (" " if pattern.startswith(" ") else "").encode() + EMOJI.encode():
        assert (bits(grammar.mask(state), vocabulary.size) == brute_force(grammar, state, vocabulary)).all()
        state = grammar.advance_bytes(state, bytes([byte]))
    for seed in range(30):
        text = _output(grammar, lambda token: bool(token) and token[0] >= 0x80, seed)
        assert text is None or re.fullmatch(pattern, text.decode())


# -- C04: differential fuzz is tests/property/test_regex_fuzz.py ------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [r"(not(?=\s)|-)", "(?<!a)b", r"\bfoo\b", "(?i)a", "a*?", "^a$", r"a\Z", "(?#c)a", r"(?:not(?=\s)|-)\s?"],
)
def test_c04_what_an_automaton_can_do_is_what_re_does(pattern: str) -> None:
    grammar = _grammar("regex", pattern)
    for text in ("", "a", "A", "b", "ab", "foo", "-", "not", "not ", "- ", "aa", "a\n", "foo "):
        assert _accepts(grammar, text) == (re.fullmatch(pattern, text) is not None), text


def test_c04_a_pattern_that_nothing_matches_is_refused() -> None:
    with pytest.raises(ConstraintUnreachable, match="No text satisfies"):
        _grammar("regex", "a^b")


@pytest.mark.parametrize(("pattern", "position"), [(r"(a)\1", "3"), ("a++", "1")])
def test_c04_what_it_cannot_do_is_refused_by_name_and_position(pattern: str, position: str) -> None:
    with pytest.raises(RequestRefused, match=position):
        _grammar("regex", pattern)


# -- C05 and C06: more in test_constraint_limits.py and test_json_schema_refusals.py ----------------------------------


def _deep_one_of(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "null"}
    for level in range(depth):
        schema = {"oneOf": [{"type": "object", "properties": {f"k{level}": schema}, "required": [f"k{level}"]},
                            {"type": "array", "items": schema, "minItems": 1}]}  # fmt: skip
    return schema


HEAVY: dict[str, tuple[str, object]] = {
    "counted tail": ("regex", "(a|b)*a(a|b){18}"),
    "nested counts": ("regex", "((a{1,50}){1,50}){1,50}"),
    "long counts": ("regex", ".{0,5000}"),
    "optional counts": ("regex", "(x?){40}x{40}"),
    "maxLength": ("json_schema", {"type": "string", "maxLength": 100_000}),
    "enum": ("json_schema", {"enum": [f"value {i}" for i in range(50_000)]}),
    "oneOf": ("json_schema", _deep_one_of(16)),
    "optional properties": ("json_schema", {"properties": {f"p{i}": {"type": "string"} for i in range(200)}}),
    "60,000 groups": ("regex", "(" * 60_000 + "a" + ")" * 60_000),
    "60,000 open groups": ("regex", "(" * 60_000),
    "10,000 arrays": ("json_schema", '{"items":' * 10_000 + "{}" + "}" * 10_000),
    "100,000 brackets": ("json_schema", "[" * 100_000),
    "allOf chain": ("json_schema", '{"allOf":[' * 5_000 + "{}" + "]}" * 5_000),
}


def _use(name: str) -> None:
    kind, source = HEAVY[name]
    with suppress(ConstraintTooLarge, ConstraintInvalid):
        grammar = _grammar(kind, source)
        _output(grammar, lambda _: False, seed=1, most=40)
        grammar.tokens_to_finish(grammar.start)


@needs_core
@pytest.mark.parametrize("name", HEAVY)
def test_c05_c06_heavy_constraints_end_in_a_result_or_a_limit(name: str) -> None:
    with _in_time():
        _use(name)


@needs_core
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read as on Linux")
def test_c05_memory_comes_back_with_the_vocabulary() -> None:
    """The first round fills what the allocator keeps; two more, of some ten MB each, add nothing."""
    before, *_, after = [_resident_bytes_after_all() for _ in range(3)]
    assert after - before < 10e6


def _resident_bytes_after_all() -> int:
    for name in HEAVY.keys() - {"60,000 groups", "60,000 open groups"}:  # these are refused, and take longest
        _use(name)
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- C07: the standard's test suite and JSONSchemaBench are tests/property/test_json_schema_suites.py -----------------


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ["abc"], ["abcd", "aB", ""]),
        ({"type": "object", "required": ["k"]}, [{"k": 1}, {"k": 1, "z": 2}], [{}, {"z": 2}]),
        ({"properties": {"a": {"const": 1}}, "additionalProperties": True}, [{"a": 1, "b": 2}], [{"a": 2}]),
        ({"type": "integer", "minimum": 3, "maximum": 9, "multipleOf": 3}, [3, 9], [0, 4, 12]),
        ({"items": {"enum": [1, 2]}, "uniqueItems": True}, [[1, 2], [2]], [[1, 1]]),
        ({"not": {"type": "string"}}, [1, None, []], ["a"]),
        ({"if": {"type": "integer"}, "then": {"maximum": 5}, "else": {"type": "null"}}, [3, None], [6, "a"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "x"]),
        ({"patternProperties": {"^n": {"type": "integer"}}}, [{"n": 1, "x": "y"}], [{"n": "1"}]),
    ],
)
def test_c07_every_keyword_holds(schema: object, valid: list[object], invalid: list[object]) -> None:
    assert [value for value in valid if not _schema_accepts(schema, value)] == []
    assert [value for value in invalid if _schema_accepts(schema, value)] == []


def test_c07_what_cannot_be_enforced_is_refused_with_keyword_and_pointer() -> None:
    with pytest.raises(ConstraintUnsupported, match="#/properties/a/uniqueItems"):
        _grammar("json_schema", {"properties": {"a": {"type": "array", "uniqueItems": True}}})


# -- C08 ------------------------------------------------------------------------------------------------------------


def test_c08_members_come_in_the_order_of_the_schema() -> None:
    properties = {name: {"type": "null"} for name in ("zebra", "apple", "mango")}
    required = {"properties": properties, "required": list(properties), "additionalProperties": False}
    assert _schema_accepts(required, dict.fromkeys(properties))
    assert not _schema_accepts(required, dict.fromkeys(sorted(properties)))
    optional = {"type": "object", "properties": properties, "additionalProperties": False}
    for names in ([], ["apple"], ["zebra", "mango"], ["zebra", "apple", "mango"]):
        assert _schema_accepts(optional, dict.fromkeys(names))
    assert not _schema_accepts(optional, dict.fromkeys(["mango", "zebra"]))


def test_c08_a_wrong_late_value_is_rejected() -> None:
    schema = {"type": "object", "properties": {"a": {"const": "foo"}, "b": {"type": "string"}}}
    for order in ("schema", "any"):
        grammar = _grammar("json_schema", schema, member_order=order)
        assert not _accepts(grammar, '{"b": "bar", "a": "BAD"}')
        assert _accepts(grammar, '{"b": "bar", "a": "foo"}') == (order == "any")


@pytest.mark.parametrize("formats", ["assert", "annotate"])
def test_c08_formats_are_enforced_or_not_as_the_constraint_says(formats: str) -> None:
    grammar = _grammar("json_schema", {"type": "string", "format": "date"}, formats=formats)
    assert _accepts(grammar, '"2024-02-29"')
    assert _accepts(grammar, '"no date"') == (formats == "annotate")


# -- C10 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("whitespace", "runs"), [("compact", 1), ("dense", 0), ("flexible", 42), ("[ ]?", 1)])
def test_c10_blanks_do_not_run_away(whitespace: str, runs: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
              "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
    grammar = _grammar("json_schema", schema, whitespace=whitespace)
    for seed in range(10):
        text = _output(grammar, lambda token: bool(token) and not token.strip(), seed)
        assert text is not None
        assert max(map(len, re.findall(rb"\s*", text))) <= runs
        assert set(json.loads(text)) == {"a", "b"}


@pytest.mark.parametrize("whitespace", ["x?", "[ ", r"\S"])
def test_c10_whitespace_that_is_none_is_refused(whitespace: str) -> None:
    with pytest.raises(ConstraintInvalid):
        _grammar("json_schema", {"type": "object"}, whitespace=whitespace)


# -- C13 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["1{1,3}", r"(\d{1,3}\.){3}\d{1,3}", "Once.*", "(ab)?", "", r"<\|im_end\|>"])
def test_c13_ends_are_allowed_exactly_where_the_pattern_is_satisfied(pattern: str) -> None:
    vocabulary = _vocabulary()
    grammar = _grammar("regex", pattern, vocabulary)
    for seed in range(10):
        state, rng = grammar.start, random.Random(seed)
        text = b""
        for _ in range(30):
            allowed = bits(grammar.mask(state), vocabulary.size)
            try:
                is_match = re.fullmatch(pattern, text.decode()) is not None
            except UnicodeDecodeError:
                is_match = False
            assert allowed[list(vocabulary.eos_ids)].tolist() == [is_match] * 2
            assert not allowed[vocabulary.size - 1], "a special id is never text"
            following = [i for i in allowed.nonzero()[0].tolist() if i not in vocabulary.eos_ids]
            assert grammar.is_final(state) == (is_match and not following)
            if not following:
                break
            token_id = rng.choice(following)
            text, state = text + vocabulary.token_bytes[token_id], grammar.advance(state, token_id)


# -- C14 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [r"\x04", "[\U00040000]", "a\\x1db", "ab\x04|c\x1d"])
def test_c14_what_the_tokenizer_cannot_write_is_found_when_compiling(pattern: str) -> None:
    without = bytes([0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)])
    with pytest.raises(ConstraintUnreachable, match="tokenizer"):
        _grammar("regex", pattern, _vocabulary(without))
    kept = _grammar("regex", f"(?:{pattern})|ab*", _vocabulary(without))
    state = kept.advance_bytes(kept.start, b"ab")
    assert kept.is_accepting(state)
    assert kept.advance_bytes(state, b"\x04") == DEAD


# -- C16 ------------------------------------------------------------------------------------------------------------

LIST = {"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["value", "next"],
        "additionalProperties": False}}, "$ref": "#/$defs/node"}  # fmt: skip
TREE = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]}
MUTUAL = {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}},
          "b": {"type": "object", "additionalProperties": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}  # fmt: skip


def test_c16_recursion_has_no_depth_limit() -> None:
    chain: object = None
    for value in range(300):
        chain = {"value": value, "next": chain}
    assert _schema_accepts(LIST, chain)
    assert _schema_accepts(TREE, {"kids": [{"kids": []}, {"kids": [{"kids": []}]}]})
    assert _schema_accepts(MUTUAL, [{"x": [{"y": []}]}])
    assert not _schema_accepts(MUTUAL, [[{"x": []}]])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"$ref": "#"}, "itself|refer|instance|JSON value"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "itself|refer|instance|JSON value",
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "No JSON value"),
        ({"$ref": "https://example.org/schema.json"}, "never fetched|ever fetched"),
    ],
)
def test_c16_baseless_and_remote_references_are_refused(schema: object, message: str) -> None:
    with pytest.raises(RequestRefused, match=message), _in_time():
        _grammar("json_schema", schema)


def test_c16_the_order_of_definitions_changes_nothing() -> None:
    swapped = {**MUTUAL, "$defs": dict(reversed(MUTUAL["$defs"].items()))}  # type: ignore[attr-defined]
    first, second = _grammar("json_schema", MUTUAL), _grammar("json_schema", swapped)
    for seed in range(20):
        text = _output(first, lambda token: token in (b"]", b"}"), seed)
        assert text is None or second.is_accepting(second.advance_bytes(second.start, text))


def test_c16_every_sample_has_its_own_state() -> None:
    grammar = _grammar("json_schema", LIST)
    states = [grammar.advance_bytes(grammar.start, f'{{"value": {number}'.encode()) for number in range(4)]
    for number, state in enumerate(states):
        again = grammar.advance_bytes(state, b', "next": null}')
        assert grammar.is_accepting(again)
        assert not grammar.is_accepting(states[number]), "an int: nothing that another sample could move"
