"""U01 to U09 over HTTP: what is streamed is what is said, whatever bytes a model emits and whatever stops it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.support.byte_tokenizer import FIRST_BYTE, IM_END
from tests.support.tiny_server import Served


@contextmanager
def saying(server: Served, *token_ids: int, prompt_length: int = 3) -> Iterator[None]:
    """The model says these tokens, one per step, whatever it is asked; then control tokens for ever."""
    executor = server.runtime.executor
    step = executor.step

    def scripted(batch: Any) -> torch.Tensor:
        logits = torch.full(step(batch).shape, -50.0)
        for row, position in enumerate(batch.positions[batch.logit_rows]):
            at = int(position) + 1 - prompt_length
            logits[row, token_ids[at] if 0 <= at < len(token_ids) else IM_END] = 50.0
        return logits

    executor.step = scripted  # type: ignore[method-assign]
    try:
        yield
    finally:
        executor.step = step  # type: ignore[method-assign]


def _ids(data: bytes) -> list[int]:
    return [FIRST_BYTE + byte for byte in data]


def _said(server: Served, said: list[int], **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """The whole answer, and the pieces of the streamed one."""
    body = {"model": "tiny", "prompt": "abc", "temperature": 0, "max_tokens": 60, **fields}
    with saying(server, *said):
        whole = server.ok("/v1/completions", **body)
        server.http.post("/flush_cache")
        events = server.events("/v1/completions", **body)
    server.http.post("/flush_cache")
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
    return whole, [choice["text"] for choice in choices[:-1]]


@pytest.mark.parametrize("text", ["naïve café", "한국어 음절", "👩‍👩‍👧‍👦 family", "日本語", "é" * 20])
def test_case_u01_split_characters_are_streamed_whole(server: Served, text: str) -> None:
    """U01: every token is one byte."""
    whole, pieces = _said(server, _ids(text.encode()))
    assert whole["choices"][0]["text"] == text == "".join(pieces)
    assert all(pieces), "no empty chunk"
    assert "\ufffd" not in text


@pytest.mark.parametrize("cut", range(1, 8))
def test_case_u03_an_end_inside_a_character(server: Served, cut: int) -> None:
    """U03: the same, streamed or not, with at most one replacement."""
    whole, pieces = _said(server, _ids("a👩b".encode()), max_tokens=cut)
    text = whole["choices"][0]["text"]
    assert "".join(pieces) == text
    assert text.count("\ufffd") <= 1
    assert "a👩b".startswith(text.rstrip("\ufffd"))


def test_case_u03_bytes_that_are_no_text(server: Served) -> None:
    whole, pieces = _said(server, _ids(b"x\xf0 y\xff\xc0z\x80"))
    assert "".join(pieces) == whole["choices"][0]["text"]
    assert "".join(character for character in whole["choices"][0]["text"] if character != "\ufffd") == "x yz"


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("GHI", "DEF"),
        ("DEFGHIJ", ""),
        (["zz", "HI"], "DEFG"),
        (["F", "EF"], "D"),
        ("ZZ", "DEFGHIJKLM"),
        ("LMNO", "DEFGHIJKLM"),
    ],
)
def test_case_u04_u06_stop_strings_never_leak(server: Served, stop: Any, text: str) -> None:
    """U04, U06: no part of a stop is in any piece, what was held in vain is flushed, usage counts what was computed."""
    whole, pieces = _said(server, _ids(b"DEFGHIJKLM"), stop=stop)
    assert whole["choices"][0]["text"] == text == "".join(pieces)
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert all(pieces)
    stopped = isinstance(whole["choices"][0]["stop_reason"], str)
    assert stopped == (text != "DEFGHIJKLM")
    counted = {"DEF": 6, "": 7, "DEFG": 6, "D": 3, "DEFGHIJKLM": 11}  # with the stop's own tokens, or the end token
    assert whole["usage"]["completion_tokens"] == counted[text]


def test_case_u07_special_tokens_stop_without_cutting_text(server: Served) -> None:
    """U07: an end token, a stop token, the literal text of one."""
    assert _said(server, _ids(b"hello"))[0]["choices"][0]["text"] == "hello"
    whole, pieces = _said(server, [*_ids(b"hello"), 0, *_ids(b"more")], stop_token_ids=[0])
    assert whole["choices"][0]["text"] == "".join(pieces) == "hello"
    assert whole["choices"][0]["stop_reason"] == 0
    spelled = _ids(b"hello<|im_end|>more")
    whole, pieces = _said(server, spelled, stop="<|im_end|>")
    assert whole["choices"][0]["text"] == "".join(pieces) == "hello"
    whole, _ = _said(server, [*_ids(b"he"), IM_END, *_ids(b"llo")], ignore_eos=True, max_tokens=6)
    assert whole["choices"][0]["text"] == "hello"


def test_case_u09_text_that_cannot_be_encoded_is_named(server: Served) -> None:
    """U09; the byte tokenizer has every byte, so only half a pair can be missing here."""
    assert "offset 1" in server.refused("/tokenize", prompt="a\ud800b")
    assert server.ok("/tokenize", prompt="a\x04b\U00040000")["count"] == len("a\x04b\U00040000".encode())
    assert server.ok("/detokenize", tokens=_ids("añ".encode()))["prompt"] == "añ"
