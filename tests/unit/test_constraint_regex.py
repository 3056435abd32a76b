"""The regex front end: what Python's `re` matches as a whole, or a refusal with name and position."""

from __future__ import annotations

import re
import time

import pytest

from lmprog_runtime.constraint.expressions import Encoding, Expressions
from lmprog_runtime.errors import ConstraintInvalid, ConstraintTooLarge, ConstraintUnsupported
from tests.support.constraints import CORES, new_arena

TEXTS = [
    "", "a", "b", "ab", "abc", "aab", "aaa", "ac", "A", "AB", "foo", "foo bar", "foobar", "a\n", "a\nb", "\n", "é", "É",
    "日本", "😀", "😀😁", " 😨", "1", "12", "3.14", "٣", "not ", "not", "-", "_", " ", "a b", "ß", "K", "ſ", "K",
    "ı", "İ",
    "a#", "]", "^", "a]", "\\", "ab\nfoo", "<|im_end|>", "1.1.1.233", "ab ab", "\x1c", "\x85", " ",
]  # fmt: skip

PATTERNS = [
    "", "a", "a*b?", "(a|ab)(c|bc)", "(?:a|b){2,3}", "a{2}", "a{,2}", "a{1,}", "a{x}", "a{,}", "x{", "{", "a*?",
    "a{1,2}?b", "[ab]+", "[^a]", "[]a]", "[^]a]", "[a\\]]", "[a-c-]+", "[\\d.]+", "[\\w-]+", "[^\\W_]+", ".",
    ".{1,3}", "(?s).+", "(?s:.)b", r"\w+", r"\W", r"\d+", r"\D", r"\s", r"\S+", r"(?a)\w+", r"(?a:\d)", r"(?a)\s",
    "(?i)a", "(?i)k", "(?i)s+", "(?i)[a-z]+", "(?i)[^a]", "(?i:A)b", "(?i)ß", "(?i)İ|ı", "(?-i:a)", "(?i)a(?-i:b)",
    "^a$", "a^b", "a$b", r"a$\n", "$", "^", r"\Aa\Z", r"(?m)a$\n^b", r"\bfoo\b", r"\bfoo\b bar", r"foo\Boo|foo\Bbar",
    r"(?:foo\b ?)+(bar)?", r"\b|\B", "(not(?=\\s)|-)", "not(?=\\s)\\s", "a(?!b).*", "(?!ab)a.*", "(?=.*b)[abc]+",
    "(?:(?!b).)*", "(?:a(?=b)|b)+", "(?<=a)b", "a(?<=a)b", "a(?<!b)b?", "(?:ab(?<=b))+", "(?<!a)b",
    "(?x) a b # comment", "(?x)a\\ b", "(?x)[ a]+", "(?#c)a(?#d)*", r"\x61|\u00e9|\U0001F600",
    r"\N{LATIN SMALL LETTER A WITH ACUTE}|a", r"\141|\0", r"\n|\t|\\|\.", "[\\b]", "[\\n]+", "[😀-🙏]+", "é+", " ?😨",
    "(?P<name>a)b", "()", "(|a)b", "(a*)*", "(a*){2,}", "((a|b)*)+c?", "(?:x{0})a", "[a-]", "[-a]+", "<\\|im_end\\|>",
    r"(\d{1,3}\.){3}\d{1,3}", "(?:a|a)(?:b|b)", "a||b", "(?i)[k-l]+", "(?i)[K]", r"[\s\S]", "1{1,3}", "Once.*|a",
    "^(?!^ab)a.*", "(?=^a)a", r"(?!\bfoo)\w+", r"^(?!\A$).*", "(?=a)(?=ab)a.*", "(?!a)(?!b)[a-z]", "(?=(?!b)a)ab",
    "a*(?=^ab)[ab]*", "(?!^a).*", "[a-c]*(?!^)b", "a?(?!^b)b*", "(?:a|b*)(?!^$).*", "a(?=^b)b",
    "(?:(?=a)a|b)*", "(?m)^$", "(?s)(?i)A.B",
]  # fmt: skip


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_what_re_matches(core: str, pattern: str) -> None:
    expressions = Expressions(arena=new_arena(core))
    root = expressions.regex(pattern)
    found = {text for text in TEXTS if expressions.matches(root, text.encode())}
    assert found == {text for text in TEXTS if re.fullmatch(pattern, text)}


@pytest.mark.parametrize("pattern", ["a", "^a", "a$", "^a$", "a|^b$", "b?", r"\bfoo", "(?=b)", "a.b", "[^a]$"])
def test_search_finds_it_anywhere(pattern: str) -> None:
    expressions = Expressions()
    root = expressions.regex(pattern, search=True, ecma=True)
    python = pattern.replace("$", r"\Z").replace(".", r"[^\n\r\u2028\u2029]")
    found = {text for text in TEXTS if expressions.matches(root, text.encode())}
    assert found == {text for text in TEXTS if re.search(python, text, re.ASCII)}


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\d+$", "12", "٣"),
        (r"^\w$", "a", "é"),
        ("^[^]$", "\n", ""),
        ("^[]$|^a$", "a", "b"),
        (r"^\u{1F600}$", "😀", "u"),
        (r"^\ud83d\ude00$", "😀", "\ufffd"),
        (r"^(?<year>\d{4})$", "2024", "24"),
        (r"^\p{Lu}\P{Lu}$", "Éa", "éa"),
        (r"^\cJ$", "\n", "J"),
        (r"^a\/b$", "a/b", "a\\/b"),
        (r"^[\w-.]+$", "a-.b", "a b"),
        (r"^\s$", "\ufeff", "\x1c"),
        ("^a{x}$", "a{x}", "ax"),
        ("^]}$", "]}", "]"),
        ("^.$", "a", "\u2028"),
        (r"^\p{gc=Nd}+$", "1٣", "a"),
    ],
)
def test_dialect_of_json_schema(pattern: str, matching: str, other: str) -> None:
    expressions = Expressions()
    root = expressions.regex(pattern, search=True, ecma=True)
    assert expressions.matches(root, matching.encode())
    assert not expressions.matches(root, other.encode())


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("ab**", 3), ("a{2}{3}", 4), ("[a-", 0), ("(x", 0), ("(?P<n", 0), ("x{3,1}", 1), (r"\p{Nope}", 0), ("*a", 0),
        ("a)", 1), ("a|*", 2), ("(?z)a", 0), (r"\q", 0), ("\\", 0), ("[b-a]", 1), (r"[\d-a]", 1),
        ("(?P<a>x)(?P<a>y)", 8), (r"\x1", 0), ("a(?i)b", 1), ("(?", 0), (r"\N{NO SUCH NAME}", 0), ("(?#", 0),
        (r"[\8]", 1), (r"\777", 0), (r"\U00110000", 0),
    ],
)  # fmt: skip
def test_malformed_patterns_are_refused_with_their_position(pattern: str, position: int) -> None:
    with pytest.raises(ConstraintInvalid, match=f"at position {position} of the regex"):
        Expressions().regex(pattern)


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"(a)\1", r"back-reference \\1 at position 3"),
        ("(?P<x>a)(?P=x)", "back-reference at position 8"),
        ("a++", "possessive quantifier at position 1"),
        ("(?>a)b", "atomic group at position 0"),
        ("(a)?(?(1)b|c)", "conditional group at position 4"),
        (r"(?:\bfoo)+", "word boundary after something of unknown length at position 3"),
        ("(?:(?<=ab)c)*", "look-behind at position 3"),
        ("(?:x?^a)*", "of unknown length at position 5"),
        (r"(?m)(^\w+$\n?)+", "of unknown length at position 5"),
    ],
)
def test_what_an_automaton_cannot_do_is_refused_by_name(pattern: str, what: str) -> None:
    with pytest.raises(ConstraintUnsupported, match=what):
        Expressions().regex(pattern)


@pytest.mark.parametrize("core", CORES)
def test_deep_and_long_patterns(core: str) -> None:
    expressions = Expressions(arena=new_arena(core))
    start = time.thread_time()
    nested = expressions.regex("(" * 60_000 + "a" + ")" * 60_000)
    assert expressions.matches(nested, b"a")
    with pytest.raises(ConstraintTooLarge, match="nested in each other"):
        expressions.regex("(" * 60_000 + "a" + ")*" * 60_000)
    assert time.thread_time() - start < (2 if core == "native" else 6)


@pytest.mark.parametrize("encode", [Encoding.JSON_ESCAPED, Encoding.JSON_PLAIN])
def test_patterns_inside_json_strings(encode: Encoding) -> None:
    expressions = Expressions()
    root = expressions.regex('a["\\\\é\n😀/]', encode=encode)
    for text in ('a\\"', "a\\\\", "aé", "a\\n", "a😀", "a/"):
        assert expressions.matches(root, text.encode())
    for text in (r"a\u0022", r"a\u00E9", r"\u0061\u00e9", r"a\ud83D\uDE00", r"a\/", r"a\u000a"):
        assert expressions.matches(root, text.encode()) == (encode is Encoding.JSON_ESCAPED)
    for text in ('a"', "a\n", "a\\", r"a\u0021", r"a\ud83d"):
        assert not expressions.matches(root, text.encode())
