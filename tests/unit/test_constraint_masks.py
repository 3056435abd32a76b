"""Masks, ends, forced text and healing over small vocabularies, on both cores, against token-by-token brute force."""

from __future__ import annotations

import random

import pytest

from lmprog_runtime.constraint.base import DEAD
from lmprog_runtime.constraint.compiler import compile_constraint, prefix_constraint
from lmprog_runtime.constraint.expressions import Encoding, Expressions
from lmprog_runtime.constraint.grammar import CompiledGrammar
from lmprog_runtime.constraint.vocabulary import Vocabulary
from lmprog_runtime.errors import ConstraintUnreachable
from lmprog_runtime.request import Constraint
from tests.support.constraints import (
    CORES,
    bits,
    brute_force,
    new_arena,
    regex_grammar,
    small_vocabulary,
    use_core,
)

PATTERNS = [
    "a*b?", r"\w+", ".{1,3}", ".{0,12}", "[^a]*", "(ab|ba){2,}", "(?:(?!ab).)*", "(?=.*1)[ab1 ]+", "[ab]{20,40}1?",
    "(?!ab1|ba)[ab1]{0,30}", "é|世+|😀{1,2}", "(a{0,9}b){0,9}", "", "1{1,3}", "(ab)?", r"(a|b)*a(a|b){8}",
    "(?:a{1,12},){0,12}",
]  # fmt: skip


def _assert_masks(grammar: CompiledGrammar, vocabulary: Vocabulary, seed: int, steps: int = 12) -> None:
    """Along a random walk of tokens: the mask is what brute force says, and `advance` agrees with it."""
    rng = random.Random(seed)
    state = grammar.start
    for _ in range(steps):
        allowed = bits(grammar.mask(state), vocabulary.size)
        assert (allowed == brute_force(grammar, state, vocabulary)).all()
        assert [grammar.advance(state, i) != DEAD for i in range(vocabulary.size)] == allowed.tolist()
        assert allowed.any(), "a dead end"
        choices = [i for i in allowed.nonzero()[0].tolist() if i not in vocabulary.eos_ids]
        if not choices:
            assert grammar.is_final(state)
            return
        state = grammar.advance(state, rng.choice(choices))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_equal_brute_force(core: str, pattern: str) -> None:
    for seed in range(4):
        vocabulary = small_vocabulary(seed)
        _assert_masks(regex_grammar(core, pattern, vocabulary), vocabulary, seed)


def _json_like(expressions: Expressions, variant: int) -> int:
    """Strings as lexemes, plain and with lengths, exclusions and a pattern, in nested arrays and member lists."""
    e = expressions
    character = e.any_character(Encoding.JSON_PLAIN)
    text = e.repeat(character, 0)
    bodies = [
        text,
        e.repeat(character, 0, 11),
        e.repeat(character, 2, 30),
        e.intersect(text, e.complement(e.words([b"ab", b"a", b"b1"]))),
        e.intersect(e.repeat(character, 0, 20), e.complement(e.words([b"ab"]))),
        e.regex("[ab1]+", encode=Encoding.JSON_PLAIN),
        e.intersect(e.regex("[ab1,]+", encode=Encoding.JSON_PLAIN), e.repeat(character, 0, 14)),
    ]
    quote = e.literal(b'"')
    string = e.concat(quote, e.lexeme(e.concat(bodies[variant], quote)))
    number = e.lexeme(e.concat(e.byte_set(b"1"), e.repeat(e.byte_set(b"1"), 0, 12)))
    value = e.reference()
    comma = e.literal(b",")
    pairs = [(e.concat(e.literal(b"a"), string), True), (e.concat(e.literal(b"b"), value), False), (number, False)]
    members = e.members(pairs, separator=comma, extra=e.concat(e.literal(b" "), value), any_order=variant % 2 == 0)
    array = e.concat(
        e.literal(b"\\"), e.optional(e.concat(value, e.repeat(e.concat(comma, value), 0, 9))), e.literal(b"\n")
    )
    e.define(value, e.alternate([string, number, array, e.concat(e.literal("é".encode()), members, comma)]))
    return value


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("variant", range(7))
def test_masks_of_lexemes_equal_brute_force(core: str, variant: int) -> None:
    for seed in range(6):
        vocabulary = small_vocabulary(seed, alphabet='ab1 ,"\n\\é', merged=150)
        expressions = Expressions(arena=new_arena(core))
        root = expressions.arena.seal(_json_like(expressions, variant), vocabulary.producible)
        _assert_masks(CompiledGrammar(expressions.arena, root, vocabulary), vocabulary, seed, steps=25)


def test_lexeme_sets_are_shared_between_grammars_without_harm() -> None:
    """The second grammar of a vocabulary takes the token sets of the first."""
    vocabulary = small_vocabulary(3, alphabet='ab1 ,"\n\\é', merged=150)
    for seed in range(6):
        for variant in range(7):
            expressions = Expressions()
            root = expressions.arena.seal(_json_like(expressions, variant), vocabulary.producible)
            _assert_masks(CompiledGrammar(expressions.arena, root, vocabulary), vocabulary, seed)


@pytest.mark.parametrize("core", CORES)
def test_end_tokens_are_allowed_exactly_where_the_constraint_is_satisfied(core: str) -> None:
    vocabulary = small_vocabulary(0)
    grammar = regex_grammar(core, "1{1,3}", vocabulary)
    one = vocabulary.token_bytes.index(b"1")
    states = [grammar.start]
    for _ in range(3):
        states.append(grammar.advance(states[-1], one))
    assert [grammar.is_accepting(state) for state in states] == [False, True, True, True]
    assert [grammar.is_final(state) for state in states] == [False, False, False, True]
    first, second = vocabulary.eos_ids
    assert grammar.advance(states[1], first) == grammar.advance(states[1], second) == states[1]
    assert grammar.advance(grammar.start, first) == DEAD
    assert bits(grammar.mask(states[3]), vocabulary.size).nonzero()[0].tolist() == [first, second]


def test_special_tokens_are_never_text() -> None:
    vocabulary = Vocabulary([b"<", b"s", b">", b"<s>", b"<s>", None], eos_ids=[5], special_ids=[4])
    grammar = regex_grammar("python", "<s>|x", vocabulary)
    assert bits(grammar.mask(grammar.start), 6).tolist() == [True, False, False, True, False, False]
    assert grammar.advance(grammar.start, 4) == DEAD


@pytest.mark.parametrize("core", CORES)
def test_unreachable_constraints_are_found_when_they_are_compiled(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_core(core, monkeypatch)
    vocabulary = small_vocabulary(0)
    for pattern in ("\x04", "[\U00040000]", "a\x1db", "c+"):
        with pytest.raises(ConstraintUnreachable, match="no token has the byte 0x"):
            compile_constraint(Constraint("regex", pattern), vocabulary)
    with pytest.raises(ConstraintUnreachable, match="contradicts itself"):
        compile_constraint(Constraint("regex", "a(?!b)b"), vocabulary)
    with pytest.raises(ConstraintUnreachable, match="the choice 'xy'"):
        compile_constraint(Constraint("choices", '["a", "xy"]'), vocabulary)


def test_vocabularies_without_single_bytes_are_searched_token_by_token() -> None:
    vocabulary = Vocabulary([b"ab", b"ba", b"\xc3\xa9", None], [3], [3])
    for pattern in ("a", "aba", "(ab)*a", "(ab){3}b"):
        with pytest.raises(ConstraintUnreachable, match="No sequence of this tokenizer's tokens"):
            compile_constraint(Constraint("regex", pattern), vocabulary)
    for pattern in ("abba", "é+", "(ab)*(ba)?"):
        compile_constraint(Constraint("regex", pattern), vocabulary)


@pytest.mark.parametrize("core", CORES)
def test_states_with_unwritable_continuations_are_left_out(core: str) -> None:
    """`b` leads to a byte that no token has, so it is not allowed in the first place."""
    vocabulary = small_vocabulary(0)
    grammar = regex_grammar(core, "a1|b\x04|(?:,|b)*\x1d|ab?", vocabulary)
    assert grammar.advance_bytes(grammar.start, b"b") == DEAD
    assert grammar.advance_bytes(grammar.start, b",") == DEAD
    _assert_masks(grammar, vocabulary, 0)


@pytest.mark.parametrize("core", CORES)
def test_forced_text_is_given_in_whole_canonical_tokens(core: str) -> None:
    """The tokens are the encoder's own; a longer token that may follow holds the end back."""
    tokens = [b"a", b"b", b"c", b"ab", b"abc", b"abca", b"1", b"c1", None]
    vocabulary = Vocabulary(tokens, [8], [8], encode=lambda text: {"abc": [4], "abc1": [4, 6], "ab": [3]}[text])
    whole = regex_grammar(core, "abc", vocabulary)
    assert whole.forced_tokens(whole.start) == [4]
    open_end = regex_grammar(core, "abc(a|b)", vocabulary)
    assert open_end.forced_tokens(open_end.start) == []  # "abca" could still be one token
    other_end = regex_grammar(core, "abc1|abcb", vocabulary)
    assert other_end.forced_tokens(other_end.start) == []  # "c1" begins in "abc", so "abc" is not sure to stay together
    common = regex_grammar(core, "abc1|abc11", vocabulary)
    assert common.forced_tokens(common.start) == [4, 6]
    choice = regex_grammar(core, "a|b", vocabulary)
    assert choice.forced_tokens(choice.start) == []
    finished = choice.advance_bytes(choice.start, b"a")
    assert choice.forced_tokens(finished) == []


def test_without_an_encoder_only_single_tokens_are_forced() -> None:
    vocabulary = Vocabulary([b"a", b"b", b"ab", None], [3], [3])
    assert (
        regex_grammar("native", "ab", vocabulary).forced_tokens(regex_grammar("native", "ab", vocabulary).start) == []
    )
    single = regex_grammar("native", "ba", vocabulary)
    assert single.forced_tokens(single.start) == [1]


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("pattern", [None, "1+", "a[ab]*"])
def test_healing_makes_the_output_begin_with_what_was_held_back(
    core: str, pattern: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_core(core, monkeypatch)
    for seed in range(3):
        vocabulary = small_vocabulary(seed)
        then = None if pattern is None else compile_constraint(Constraint("regex", pattern), vocabulary)
        grammar = prefix_constraint(b" a", then, vocabulary)
        _assert_masks(grammar, vocabulary, seed)
        allowed = bits(grammar.mask(grammar.start), vocabulary.size).nonzero()[0]
        begins = [vocabulary.token_bytes[i] for i in allowed]
        assert begins
        assert all(data.startswith(b" a") or b" a".startswith(data) for data in begins)
        behind = grammar.advance_bytes(grammar.start, b" a")
        if then is not None:
            assert behind == then.start
        assert grammar.is_accepting(behind) == (then is None)


def test_healing_with_bytes_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConstraintUnreachable, match="heal=False"):
        prefix_constraint(b"\x04", None, small_vocabulary(0))


def test_masks_are_read_only_and_shared_between_equal_states() -> None:
    vocabulary = small_vocabulary(0)
    grammar = regex_grammar("native", "(ab)*", vocabulary)
    again = grammar.advance_bytes(grammar.start, b"abab")
    assert again == grammar.start
    assert grammar.mask(again) is grammar.mask(grammar.start)
    with pytest.raises(ValueError, match="read-only"):
        grammar.mask(grammar.start)[0] = 0
