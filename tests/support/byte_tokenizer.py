"""A tokenizer of 256 bytes and three control tokens, made in the test: for tiny models, and wherever a Tokenizer is."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lmprog_runtime.model.tokenizer import Tokenizer

END_OF_TEXT, IM_START, IM_END = 0, 1, 2
FIRST_BYTE = 3  # the id of byte 0
VOCAB = FIRST_BYTE + 256

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A chat template for it, without a default system turn."""


def make_byte_tokenizer(
    merges: Sequence[tuple[bytes, bytes]] = (), *, without: bytes = b"", vocab_size: int | None = None
) -> Tokenizer:
    """Ids 0 to 2 are control tokens, FIRST_BYTE + b is byte b, then one id per merge, in the order given.

    `without` are bytes that the tokenizer lacks: their ids stand for nothing. "<|im_end|>" ends an answer.
    """
    return Tokenizer(
        byte_tokenizer_json(merges, without=without), named=NAMED, vocab_size=vocab_size or VOCAB + len(merges)
    )


NAMED = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def byte_tokenizer_json(merges: Sequence[tuple[bytes, bytes]] = (), *, without: bytes = b"") -> bytes:
    """The tokenizer.json of `make_byte_tokenizer`."""
    vocabulary = {name: token_id for token_id, name in enumerate(SPECIALS)}
    vocabulary |= {_name(bytes([byte])): FIRST_BYTE + byte for byte in range(256) if byte not in without}
    vocabulary |= {_name(left + right): VOCAB + index for index, (left, right) in enumerate(merges)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": name, **flags} for index, name in enumerate(SPECIALS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [[_name(a), _name(b)] for a, b in merges]},
    }
    return json.dumps(content).encode()


def _name(data: bytes) -> str:
    """The bytes in GPT-2's alphabet of printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte if byte in printable else 0x100 + others.index(byte)) for byte in data)
