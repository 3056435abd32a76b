"""Text in, ids out, text back: whatever the text, the ids and the split."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lmprog_runtime.model.detokenizer import Detokenizer
from tests.support.byte_tokenizer import VOCAB, make_byte_tokenizer
from tests.support.chat_styles import RECIPES, make_style

MERGES = [
    (b"\xf0", b"\x9f"), (b" ", b"\xf0\x9f"), (b"\xf0\x9f", b"\x98"), (b"a", b"b"), (b" ", b"a"), (b"\n", b"\n"),
    (b"\xe2", b"\x80"), (b"\xc3", b"\xa9"), (b"\x98", b"\x80"), (b"\x98\x80", b" "),
]  # fmt: skip
BYTES = make_byte_tokenizer(MERGES)

texts = st.text(
    st.sampled_from("ab \n😀😁é삼世’<|im_end|>\u200d") | st.characters(exclude_categories=["Cs"]), max_size=40
)
token_ids = st.lists(st.integers(0, VOCAB + len(MERGES) - 1), max_size=30)


@given(texts)
def test_bytes_round_trip(text: str) -> None:
    ids = BYTES.encode(text)
    assert BYTES.decode_bytes(ids) == text.encode()
    assert not BYTES.special_ids & set(ids)


@settings(max_examples=60)
@given(st.sampled_from(sorted(RECIPES)), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_every_style_round_trips(style: str, text: str) -> None:
    tokenizer = make_style(style).tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode_bytes(ids) == text.encode()
    assert not tokenizer.special_ids & set(ids)


@given(texts)
def test_pieces_of_encoded_text_add_up_and_hold_no_broken_character(text: str) -> None:
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.push(token_id) for token_id in BYTES.encode(text)]
    assert detokenizer.flush() == ""
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces) or "\ufffd" in text


@given(token_ids)
def test_pieces_of_any_ids_add_up_to_the_text_of_all(ids: list[int]) -> None:
    detokenizer = Detokenizer(BYTES)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    streamed = "".join(pieces) + detokenizer.flush()
    assert streamed == BYTES.decode(ids)
    streamed.encode()  # never half of a surrogate pair
    assert streamed.count("\ufffd") == BYTES.decode_bytes(ids).count("\ufffd".encode())


@given(token_ids, st.integers(0, 30))
def test_text_that_was_shown_never_changes(ids: list[int], length: int) -> None:
    assert BYTES.decode(ids).startswith(_shown(ids[:length]))


def _shown(ids: list[int]) -> str:
    detokenizer = Detokenizer(BYTES)
    return "".join(map(detokenizer.push, ids))


def test_an_unfinished_character_at_the_end_is_left_out() -> None:
    smile = BYTES.encode(" 😀")
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(i) for i in smile[:-1]] == [" "] + [""] * (len(smile) - 2)
    assert detokenizer.flush() == ""


def test_a_lone_first_byte_does_not_swallow_what_follows() -> None:
    lone, space = BYTES.token_bytes.index(b"\xf0"), BYTES.token_bytes.index(b" ")
    assert _shown([lone, space]) == " "
