"""Text to token ids and back, exactly: what is encoded decodes to the very same bytes, or it is refused.

Works on the `tokenizers` library's object directly (importing transformers takes seconds). Content never makes special
tokens, whatever it says; only `special_id`, and the control tokens of a chat template, do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from lmprog_runtime.errors import UnencodableText
from lmprog_runtime.model.detokenizer import Detokenizer
from lmprog_runtime.model.files import ModelFiles, read_json
from lmprog_runtime.model.token_table import make_exact, token_table

__all__ = ["Detokenizer", "Segment", "Tokenizer", "load_tokenizer"]

Segment = int | str
"""A piece of a prompt: the id of a control token, or literal text."""

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """The tokenizer of one model. Thread-safe.

    `definition` is the content of a tokenizer.json, `named` maps roles ("bos_token", ...) to tokens, `eos_ids` are
    the tokens that end an answer, `vocab_size` is the model's (it may have more rows than there are tokens).
    """

    vocab_size: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    token_bytes: list[bytes | None]  # [vocab_size]; None: a special token, or an id that stands for nothing
    bos_ids: tuple[int, ...]  # what a plain prompt starts with
    prefix_id: int  # what stands before a text that has nothing before it, for its first token's probability
    named: Mapping[str, str]
    fingerprint: str  # hexadecimal; equal for tokenizers that treat all text and ids alike

    def __init__(
        self,
        definition: bytes,
        *,
        named: Mapping[str, str] | None = None,
        eos_ids: Iterable[int] = (),
        vocab_size: int | None = None,
    ) -> None:
        library = tokenizers.Tokenizer.from_buffer(definition)
        self.named = dict(named or {})
        ends = [*map(library.id_to_token, eos_ids), self.named.get("eos_token")]
        control = [name for name in (*self.named.values(), *ends) if name and library.token_to_id(name) is not None]
        library.add_special_tokens(control)  # marks them, where the file did not
        self._added = library.get_added_tokens_decoder()
        self._specials = {token.content: token_id for token_id, token in self._added.items() if token.special}
        self._spelled_out = _any_of(self._specials)
        self.special_ids = frozenset(self._specials.values())
        self.eos_ids = frozenset(self._specials[name] for name in ends if name in self._specials)
        self.bos_ids = tuple(takewhile(self.special_ids.__contains__, library.encode("a").ids))
        self.prefix_id = next(iter([*self.bos_ids, *self._named_ids("bos_token"), *sorted(self.eos_ids), 0]))
        self._library, self._space_prefix = make_exact(library)
        self.vocab_size = max(vocab_size or 0, 1 + max(library.get_vocab(with_added_tokens=True).values()))
        self.token_bytes = token_table(self._library, self.vocab_size, self.special_ids)
        self.fingerprint = self._fingerprint(definition)

    def encode(self, text: str) -> list[int]:
        """Ids of literal text: no special tokens, nothing added at the start. Raises UnencodableText."""
        data = _utf8(text)
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if self.decode_bytes(ids) != data:
            self._refuse(text, data, ids)
        return ids

    def decode_bytes(self, token_ids: Iterable[int]) -> bytes:
        """The bytes that tokens stand for; special tokens stand for none."""
        table = self.token_bytes
        return b"".join([table[token_id] or b"" for token_id in token_ids])

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of tokens, as a Detokenizer gives it: without bytes that are no part of a character."""
        return self.decode_bytes(token_ids).decode("utf-8", "ignore")

    def at_start(self, text: str) -> str:
        """`text` as this tokenizer was trained to see it at the start of a prompt: some put a space before it."""
        return self._space_prefix.at_start(text)

    def encode_segments(self, segments: Sequence[Segment], *, is_start: bool = True) -> list[int]:
        """Ids of literal text between control tokens; neighbouring texts are encoded in one go.

        Equal to what transformers makes of the whole text when no control token is spelled out in a text. `is_start`
        says that nothing comes before.
        """
        ids: list[int] = []
        for segment in self._merge(segments):
            if isinstance(segment, int):
                ids.append(segment)
            else:
                ids += self.encode(self._space_prefix.in_section(segment, is_start=is_start))
            is_start = False
        return ids

    def split_specials(self, text: str) -> list[Segment]:
        """Segments of a text in which special tokens are spelled out; the leftmost, longest one wins."""
        segments: list[Segment] = []
        at = 0
        for found in self._spelled_out.finditer(text):
            segments += [text[at : found.start()], self._specials[found[0]]]
            at = found.end()
        return [segment for segment in [*segments, text[at:]] if segment != ""]

    def special_id(self, name: str) -> int:
        """The id of a control token by its text. ValueError when the model has none such."""
        for token_id, token in self._added.items():
            if token.content == name:
                return int(token_id)
        known = ", ".join(sorted(self._specials)[:8])
        raise ValueError(f"This model has no control token {name!r}; it has {known or 'none'}, among others.")

    @property
    def special_names(self) -> Mapping[str, int]:
        """Text of each special token, and its id."""
        return self._specials

    def _merge(self, segments: Sequence[Segment]) -> list[Segment]:
        """Neighbouring texts joined, and spaces taken away where a control token swallows them."""
        merged: list[Segment] = []
        for segment in segments:
            if isinstance(segment, str) and merged and isinstance(merged[-1], str):
                merged[-1] += segment
            else:
                merged.append(segment)
        for index, segment in enumerate(merged):
            if isinstance(segment, str):
                merged[index] = self._without_swallowed(segment, merged, index)
        return [segment for segment in merged if segment != ""]

    def _without_swallowed(self, text: str, segments: Sequence[Segment], index: int) -> str:
        before = segments[index - 1] if index else None
        after = segments[index + 1] if index + 1 < len(segments) else None
        text = text.lstrip() if before in self._added and self._added[before].rstrip else text
        return text.rstrip() if after in self._added and self._added[after].lstrip else text

    def _named_ids(self, role: str) -> frozenset[int]:
        return frozenset({self._specials[self.named[role]]} if self.named.get(role) in self._specials else ())

    def _fingerprint(self, definition: bytes) -> str:
        settings = repr((sorted(self.named.items()), sorted(self.eos_ids), self.vocab_size))
        return hashlib.sha256(hashlib.sha256(definition).digest() + settings.encode()).hexdigest()

    def _refuse(self, text: str, data: bytes, ids: Sequence[int]) -> NoReturn:
        got = self.decode_bytes(ids)
        at = next((i for i, (a, b) in enumerate(zip(data, got, strict=False)) if a != b), min(len(data), len(got)))
        offset = len(data[:at].decode("utf-8", "ignore"))
        raise _unencodable(text, offset, "the model's tokenizer has no tokens for it")


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a resolved model. ModelUnsupported when its tokens have no bytes of their own."""
    directory = files.directory
    config = read_json(directory / "config.json")
    ends = read_json(directory / "generation_config.json").get("eos_token_id", config.get("eos_token_id"))
    return Tokenizer(
        _definition(directory),
        named=_named_tokens(read_json(directory / "tokenizer_config.json")),
        eos_ids=ends if isinstance(ends, list) else [ends] if ends is not None else [],
        vocab_size=config.get("vocab_size"),
    )


def _definition(directory: Path) -> bytes:
    """tokenizer.json; where a model has only the files of older kinds, transformers makes one of them."""
    path = directory / "tokenizer.json"
    if path.is_file():
        return path.read_bytes()
    from transformers import AutoTokenizer

    made: str = AutoTokenizer.from_pretrained(directory, local_files_only=True).backend_tokenizer.to_str()
    return made.encode()


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Roles of tokens; a token is given as text or as an object with its text."""
    found = {role: settings.get(role) for role in _NAMED}
    texts = {role: token["content"] if isinstance(token, dict) else token for role, token in found.items()}
    return {role: text for role, text in texts.items() if text is not None}


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the names, longer ones first; nothing when there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _unencodable(text, error.start, "it is half of a surrogate pair") from None


def _unencodable(text: str, offset: int, reason: str) -> UnencodableText:
    return UnencodableText(
        f"U+{ord(text[offset]):04X} at offset {offset} of the text cannot be encoded: {reason}; remove or replace it."
    )
