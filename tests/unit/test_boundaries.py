"""Where text ends and generated tokens or choices begin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_runtime.errors import RequestRefused, UnencodableText
from lmprog_runtime.model.boundaries import TAIL_TOKENS, heal_tail, joint_split
from tests.support.byte_tokenizer import make_byte_tokenizer
from tests.support.chat_styles import make_style

MERGES = [
    (b":", b"/"), (b" ", b"P"), (b" ", b" "), (b"=", b"="), (b" ", b"="), (b" =", b"="), (b"\xf0", b"\x9f"),
    (b"\n", b" "), (b"\x98", b"\x80"), (b"a", b"b"), (b"b", b"c"), (b" ", b"a"),
]  # fmt: skip
TOKENIZER = make_byte_tokenizer(MERGES)
encode = TOKENIZER.encode


@pytest.mark.parametrize(
    ("pending", "heal", "kept", "held"),
    [
        ("is ", None, "is", b" "),
        ("is   ", None, "is", b"   "),
        ("is", None, "is", b""),
        ("is\n", None, "is\n", b""),
        ("is ", False, "is ", b""),
        ("is:", True, "is", b":"),
        ("is  ", True, "is", b"  "),
        ("is 😀", True, "is ", "😀".encode()),
        ("", None, "", b""),
        ("", True, "", b""),
        (" ", None, "", b" "),
    ],
)
def test_an_end_is_held_back(pending: str, heal: bool | None, kept: str, held: bytes) -> None:
    healed = heal_tail(TOKENIZER, [1], pending, heal)
    assert healed.token_ids == [1, *encode(kept)]
    assert healed.held_back == held


@pytest.mark.parametrize("heal", [None, True])
@pytest.mark.parametrize("pending", [" ", "   ", "😀", "x"])
def test_a_prompt_never_becomes_empty(pending: str, heal: bool | None) -> None:
    healed = heal_tail(TOKENIZER, [], pending, heal)
    assert healed.token_ids
    assert TOKENIZER.decode(healed.token_ids) + healed.held_back.decode() == pending


def test_generated_ids_are_never_encoded_again() -> None:
    piecewise = [*encode("a"), *encode("b")]  # encode("ab") is one token
    assert heal_tail(TOKENIZER, piecewise, "", True).token_ids == piecewise
    split = joint_split(TOKENIZER, piecewise, "", ["c", "d"])
    assert split.token_ids == piecewise
    assert split.choices == [tuple(encode("c")), tuple(encode("d"))]


def test_a_choice_that_merges_with_the_prompt_moves_the_seam_for_all() -> None:
    split = joint_split(TOKENIZER, [1], "http:", ["//x", "y"])
    assert split.token_ids == [1, *encode("http")]
    assert split.choices == [tuple(encode("://x")), tuple(encode(":y"))]
    assert split.pending == ":"


def test_choices_that_merge_with_nothing_keep_the_prompt_whole() -> None:
    split = joint_split(TOKENIZER, [1], "x:", ["y", "z"])
    assert split == ([1, *encode("x:")], [tuple(encode("y")), tuple(encode("z"))], "")


def test_equal_joint_text_gives_equal_tokens_wherever_it_was_cut() -> None:
    spaced = joint_split(TOKENIZER, [1], "is ", ["Paris", "Pa"])
    plain = joint_split(TOKENIZER, [1], "is", [" Paris", " Pa"])
    assert spaced[:2] == plain[:2]
    assert spaced.pending == " "


def test_the_seam_never_lies_inside_a_character() -> None:
    # the last byte of the smile joins the choice's token, so the whole smile goes to the choices
    tokenizer = make_byte_tokenizer([(b"\x80", b"!")])
    split = joint_split(tokenizer, [1], "x😀", ["!", "?"])
    assert split.token_ids == [1, *tokenizer.encode("x")]
    assert split.pending == "😀"
    assert [tokenizer.decode(choice) for choice in split.choices] == ["😀!", "😀?"]


def test_an_empty_choice_is_scored_by_the_end_of_the_prompt() -> None:
    split = joint_split(TOKENIZER, [1], "xy", ["", "z"])
    assert split == ([1, *encode("x")], [tuple(encode("y")), tuple(encode("yz"))], "y")
    with pytest.raises(RequestRefused, match=r"choices\[1\] is empty, and there is no text before it"):
        joint_split(TOKENIZER, [1], "", ["z", ""])


def test_a_prompt_without_a_token_of_its_own_gets_the_tokenizers() -> None:
    assert joint_split(TOKENIZER, [], "", ["x"]).token_ids == [TOKENIZER.prefix_id]
    assert joint_split(TOKENIZER, [], "a", ["b", "x"]).token_ids == [TOKENIZER.prefix_id]


def test_a_choice_that_cannot_be_encoded_is_named() -> None:
    tokenizer = make_byte_tokenizer(without=b"\x04")
    with pytest.raises(UnencodableText, match=r"choices\[1\]: U\+0004 at offset 2 "):
        joint_split(tokenizer, [1], "long prompt", ["fine", "ab\x04"])


words = st.text(st.sampled_from("abcP =:/\n😀é"), max_size=12)


@given(words, st.lists(words.filter(bool), min_size=1, max_size=4))
def test_prefix_and_choice_are_the_joint_text(pending: str, choices: list[str]) -> None:
    split = joint_split(TOKENIZER, [1], pending, choices)
    for choice, ids in zip(choices, split.choices, strict=True):
        assert [*split.token_ids[1:], *ids] == encode(pending + choice)
    assert TOKENIZER.decode(split.token_ids[1:]) + split.pending == pending
    prompt = encode(pending)
    if prompt[: len(split.token_ids) - 1] != prompt:  # the seam is as far right as it can be
        longer = prompt[: len(split.token_ids)]
        inside = TOKENIZER.decode_bytes(longer).decode("utf-8", "replace").endswith("\ufffd")
        assert inside or not all(encode(pending + choice)[: len(longer)] == longer for choice in choices)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["llama-3", "llama-2", "gemma", "qwen-3"]), st.data())
def test_only_the_tail_of_a_long_prompt_is_encoded_with_each_choice(name: str, data: st.DataObject) -> None:
    tokenizer = make_style(name).tokenizer
    words = st.sampled_from([" the", " capital", "\n\n", "  ", " 12", " é", "s", ".", " 😀", "\n    x", " France"])
    pending = "".join(data.draw(st.lists(words, min_size=TAIL_TOKENS, max_size=2 * TAIL_TOKENS)))
    choices = data.draw(st.lists(words, min_size=1, max_size=3))
    split = joint_split(tokenizer, [1], pending, choices)
    for choice, ids in zip(choices, split.choices, strict=True):
        assert [*split.token_ids[1:], *ids] == tokenizer.encode(pending + choice)


def test_many_choices_after_a_long_prompt_cost_little() -> None:
    calls: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(TOKENIZER, name)

        def encode(self, text: str) -> list[int]:
            calls.append(len(text))
            return encode(text)

    joint_split(Counting(), [1], "word " * 5000, [f"choice {i}" for i in range(500)])  # type: ignore[arg-type]
    assert sum(calls) < 30_000 + 500 * (TAIL_TOKENS * 3)
