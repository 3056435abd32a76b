"""The bytes that each token stands for, and the edits that make a `tokenizers` object encode text exactly.

Two kinds are known: byte-level BPE (each character of a token's name is one byte) and SentencePiece style ("▁" is a
space, "<0x41>" a byte). Others have tokens whose bytes depend on their neighbours: nothing exact can be built on them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import tokenizers

from lmprog_runtime.errors import ModelUnsupported

Json = dict[str, Any]

_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True, slots=True)
class SpacePrefix:
    """Where a tokenizer adds a space: nowhere, at the start of a prompt, or after every control token too."""

    where: Literal["never", "start", "sections"] = "never"
    only_if_missing: bool = True  # a text that begins with a space gets none

    def at_start(self, text: str) -> str:
        return self.in_section(text, is_start=True)

    def in_section(self, text: str, *, is_start: bool) -> str:
        wants = self.where == "sections" or (self.where == "start" and is_start)
        has = self.only_if_missing and text.startswith(" ")
        return " " + text if wants and text and not has else text


def make_exact(library: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, SpacePrefix]:
    """A tokenizer that adds, drops and rewrites nothing, and the space that the original puts before text.

    Special tokens that are spelled out in a text are text to it. Unicode composition (NFC), which some tokenizers do
    first, is left out: it would change the text behind the caller's back.
    """
    state = {name: _state(getattr(library, name)) for name in ("normalizer", "pre_tokenizer")}
    edited = {
        "normalizer": _edit(state["normalizer"], _exact_normalizer),
        "pre_tokenizer": _edit(state["pre_tokenizer"], _exact_pre_tokenizer),
    }
    exact = library
    if edited != state:
        exact = tokenizers.Tokenizer.from_str(json.dumps({**json.loads(library.to_str()), **edited}))
    exact.no_truncation()
    exact.no_padding()
    exact.encode_special_tokens = True
    return exact, _space_prefix(state)


def token_table(library: tokenizers.Tokenizer, vocab_size: int, special_ids: Collection[int]) -> list[bytes | None]:
    """[vocab_size] the bytes of each token; None for special ones and for ids without a token.

    Raises ModelUnsupported when the tokenizer is of another kind than the two known ones.
    """
    table: list[bytes | None] = [None] * vocab_size
    added = library.get_added_tokens_decoder()
    names = {i: name for name, i in library.get_vocab(with_added_tokens=False).items() if i not in added}
    for token_id, data in zip(names, _bytes_of(library, list(names.values())), strict=True):
        table[token_id] = data
    for token_id, token in added.items():
        table[token_id] = token.content.encode()
    for token_id in special_ids:
        table[token_id] = None
    return table


def _bytes_of(library: tokenizers.Tokenizer, names: list[str]) -> list[bytes]:
    kinds = {part["type"] for name in ("decoder", "pre_tokenizer") for part in _parts(_state(getattr(library, name)))}
    model = library.model
    if getattr(model, "continuing_subword_prefix", None) or getattr(model, "end_of_word_suffix", None):
        kinds = set()
    if "ByteLevel" in kinds:
        return _byte_level(names)
    if kinds & {"ByteFallback", "Metaspace"}:
        return [_sentencepiece(name) for name in names]
    raise ModelUnsupported(
        "The tokenizer is neither byte-level nor SentencePiece style, so its tokens have no bytes of their own; "
        "use another model."
    )


def _byte_level(names: list[str]) -> list[bytes]:
    """Every character is one byte, so all names are translated at once and cut apart by their lengths."""
    try:
        joined = "".join(names).translate(_byte_of_character()).encode("latin-1")
    except UnicodeEncodeError:
        return [_byte_level_or_text(name) for name in names]
    return [joined[start:end] for start, end in pairwise(accumulate(map(len, names), initial=0))]


def _byte_level_or_text(name: str) -> bytes:
    """Some vocabularies have names outside the alphabet, which can only be matched as they are."""
    try:
        return name.translate(_byte_of_character()).encode("latin-1")
    except UnicodeEncodeError:
        return name.encode()


def _byte_of_character() -> dict[int, int]:
    """Code point to byte of GPT-2's alphabet: printable bytes are themselves, the rest follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {0x100 + i: byte for i, byte in enumerate(others)}


def _sentencepiece(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(_SPACE_MARK, " ").encode()


def _space_prefix(state: dict[str, Json | None]) -> SpacePrefix:
    for part in _parts(state["normalizer"]):
        if part["type"] == "Prepend" and part["prepend"] == _SPACE_MARK:
            return SpacePrefix("sections", only_if_missing=False)
    for part in _parts(state["pre_tokenizer"]):
        if part["type"] == "Metaspace" and part["prepend_scheme"] != "never":
            return SpacePrefix("sections" if part["prepend_scheme"] == "always" else "start")
        if part["type"] == "ByteLevel" and part["add_prefix_space"]:
            return SpacePrefix("sections")
    return SpacePrefix()


def _state(component: Any) -> Json | None:
    return json.loads(component.__getstate__()) if component is not None else None


_LISTS = ("normalizers", "pretokenizers", "decoders")


def _parts(component: Json | None) -> Iterable[Json]:
    """The components of a (nested) sequence, in order."""
    if component is None:
        return
    if component["type"] != "Sequence":
        yield component
        return
    for name in _LISTS:
        for part in component.get(name, ()):
            yield from _parts(part)


def _edit(component: Json | None, change: Callable[[Json], Json | None]) -> Json | None:
    """The component with `change` made to each of its parts; parts that become None are taken out."""
    if component is None:
        return None
    if component["type"] != "Sequence":
        return change(component)
    changed = dict(component)
    for name in _LISTS:
        if name in component:
            parts = (_edit(part, change) for part in component[name])
            changed[name] = [part for part in parts if part is not None]
    return changed


def _exact_normalizer(part: Json) -> Json | None:
    return None if part["type"] in ("Prepend", "NFC") else part


def _exact_pre_tokenizer(part: Json) -> Json:
    if part["type"] == "Metaspace":
        return {**part, "prepend_scheme": "never"}
    if part["type"] == "ByteLevel":
        return {**part, "add_prefix_space": False}
    return part
