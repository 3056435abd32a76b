"""The grammar language: what texts it allows, and errors that name the line."""

from __future__ import annotations

import pytest

from lmprog_runtime.constraint.compiler import compile_constraint
from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.grammar_text import compile_grammar_text
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported
from lmprog_runtime.request import Constraint
from tests.support.constraints import small_vocabulary

ARITHMETIC = r"""
    start: sum
    sum: sum "+" product | product          // direct left recursion
    product: product "*" atom | atom
    atom: NUMBER | "(" sum ")"
    NUMBER: "0".."9"+ ("." /[0-9]+/)?
    WS: /[ \n]/
    %ignore WS
"""


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('start: "a" | "b"', ["a", "b"], ["", "ab"]),
        ('root ::= "a" b\nb ::= "b"?', ["a", "ab"], ["b"]),
        ('start: "a"~2 "b"~1..3 "c"* ["d"]', ["aab", "aabbbccd"], ["ab", "aabbbb"]),
        ('start: "Hi"i /[a-z]{2,}/', ["HIab", "hizz"], ["hia"]),
        ('start: "\\n" "\\u00e9" "\\""', ['\né"'], ["né"]),
        ('start: "é".."ü"', ["é", "ö"], ["a"]),
        ("start: /a\\/b/i # a comment", ["A/B"], ["a\\/b"]),
        ('start: "(" start ")" | "x"', ["x", "((x))"], ["(x"]),
        ('start: ("a" |\n  "b")+', ["abab"], [""]),
        ("start: rest\nrest: ITEM rest |\nITEM: /a|b/", ["", "abba"], ["c"]),
        (ARITHMETIC, ["1", " 1 + 2*( 3+4.5)\n", "((1))"], ["", "1+", "(1", "1.", "1 2", "+1"]),
    ],
)
def test_language(grammar: str, texts: list[str], others: list[str]) -> None:
    expressions = Expressions()
    root = compile_grammar_text(grammar, expressions)
    assert [text for text in texts if not expressions.matches(root, text.encode())] == []
    assert [text for text in others if expressions.matches(root, text.encode())] == []


@pytest.mark.parametrize(
    ("grammar", "error", "message"),
    [
        ("", ConstraintInvalid, "no rule named start"),
        ("start: a", ConstraintInvalid, "Line 1 of the grammar names a, which is not defined"),
        ('start: "a"\nstart: "b"', ConstraintInvalid, "Line 2 of the grammar: start is defined twice"),
        ('start: ("a"', ConstraintInvalid, "Line 1 of the grammar: [(] without its [)]"),
        ('\nstart: "a" ^', ConstraintInvalid, "Line 2 of the grammar: .* is not understood"),
        ("start: /a**/", ConstraintInvalid, "Line 1 of the grammar: A quantifier after a quantifier"),
        ('start: "ab".."c"', ConstraintInvalid, "a range wants two single characters"),
        ('start: "a"~3..2', ConstraintInvalid, "is no count"),
        ("start: A\nA: B\nB: A", ConstraintUnsupported, "refers to itself"),
        ('start: A\nA: b\nb: "x"', ConstraintUnsupported, "uses the rule b in a terminal"),
        ('start: "a" %ignore ws', ConstraintInvalid, "%ignore wants the name of a terminal"),
        ("start: " + "(" * 200 + '"a"' + ")" * 200, ConstraintTooLarge, "nests more than 100 groups"),
    ],
)
def test_errors_name_the_line(grammar: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compile_grammar_text(grammar, Expressions())


def test_indirect_left_recursion_is_refused() -> None:
    with pytest.raises(ConstraintInvalid, match="refers to itself before it reads"):
        compile_constraint(Constraint("grammar", 'start: a\na: b "x" | "y"\nb: a "z"'), small_vocabulary(0, "xyz"))


def test_a_grammar_is_a_constraint() -> None:
    vocabulary = small_vocabulary(0)
    grammar = compile_constraint(Constraint("grammar", 'start: "a" start "b" | "1"'), vocabulary)
    assert grammar.is_final(grammar.advance_bytes(grammar.start, b"aa1bb"))
