"""Where text ends and the model's own tokens begin.

The last token of a prompt depends on what comes after it ("http:" alone ends in ":", before "//" it is part of "://").
Generating right after such a token, or scoring a choice from there, sees a text cut in a way that the model never saw.
Both functions move the seam to the left, inside text that is still pending: tokens that exist already, generated ones
above all, are never encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lmprog_runtime.errors import RequestRefused, UnencodableText
from lmprog_runtime.model.tokenizer import Tokenizer

TAIL_TOKENS = 64
"""Tokens of a prompt that are encoded again with each choice. Merges do not reach across words, so a few would do."""


class Healed(NamedTuple):
    token_ids: list[int]  # the prompt
    held_back: bytes  # whole characters at its end, not in token_ids; the output has to begin with them


class JointSplit(NamedTuple):
    token_ids: list[int]  # the common prefix, at least one token
    choices: list[tuple[int, ...]]  # per choice, at least one token: the rest of prompt + choice
    pending: str  # the end of the prompt's text that is not in token_ids


def heal_tail(tokenizer: Tokenizer, token_ids: Sequence[int], pending: str, heal: bool | None = None) -> Healed:
    """Encode pending text after `token_ids`, holding back an end that generation has to finish.

    `heal` None holds back a run of spaces at the end, True the last token (more, when that begins inside a character),
    False nothing. A prompt never becomes empty. Source of the idea: token healing in guidance.
    """
    if heal is None:
        kept = pending.rstrip(" ")
        ids = [*token_ids, *tokenizer.encode(kept)]
        if ids:
            return Healed(ids, pending[len(kept) :].encode())
    encoded = tokenizer.encode(pending)
    if not heal or not encoded:
        return Healed([*token_ids, *encoded], b"")
    cut = _character_boundary(tokenizer, encoded, len(encoded) - 1)
    if not token_ids and not cut:
        return Healed(encoded, b"")
    return Healed([*token_ids, *encoded[:cut]], tokenizer.decode_bytes(encoded[cut:]))


def joint_split(tokenizer: Tokenizer, token_ids: Sequence[int], pending: str, choices: Sequence[str]) -> JointSplit:
    """Encode pending text together with each choice, and split at the last token boundary that all of them share.

    So the score of a choice is a property of the joint text, wherever the program cut it: "is " + "Paris" and "is" +
    " Paris" give the same tokens. A prompt without any token before that boundary gets the tokenizer's `prefix_id`.
    Raises UnencodableText that names the choice, RequestRefused for an empty choice after no pending text.
    """
    prompt = tokenizer.encode(pending)
    start = _tail_start(tokenizer, prompt)
    tail = tokenizer.decode_bytes(prompt[start:]).decode()
    joint = [_encode_choice(tokenizer, tail, choice, index) for index, choice in enumerate(choices)]
    shared = min([_common_length(prompt[start:], ids) for ids in joint], default=len(prompt) - start)
    shortest = min(map(len, joint), default=shared + 1)
    cut = start + _character_boundary(tokenizer, prompt[start:], min(shared, shortest - 1))
    if cut < 0:
        index = next(index for index, ids in enumerate(joint) if not ids)
        raise RequestRefused(
            f"choices[{index}] is empty, and there is no text before it; give it at least one character."
        )
    prefix = [*token_ids, *prompt[:cut]] or [tokenizer.prefix_id]
    rest = [tuple(ids[cut - start :]) for ids in joint]
    return JointSplit(prefix, rest, tokenizer.decode_bytes(prompt[cut:]).decode())


def _tail_start(tokenizer: Tokenizer, prompt: list[int]) -> int:
    """Where to begin encoding again: near the end, where a word begins and encoding from there gives the same ids."""
    table = tokenizer.token_bytes
    for start in range(max(len(prompt) - TAIL_TOKENS, 0), 0, -1):
        if not (table[prompt[start]] or b"").startswith(b" ") or (table[prompt[start - 1]] or b" ").endswith(b" "):
            continue
        if tokenizer.encode(tokenizer.decode_bytes(prompt[start:]).decode()) == prompt[start:]:
            return start
    return 0


def _encode_choice(tokenizer: Tokenizer, tail: str, choice: str, index: int) -> list[int]:
    try:
        tokenizer.encode(choice)  # alone first, for an offset in the choice's own text
        return tokenizer.encode(tail + choice)
    except UnencodableText as error:
        raise UnencodableText(f"choices[{index}]: {error}") from None


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _character_boundary(tokenizer: Tokenizer, token_ids: Sequence[int], cut: int) -> int:
    """The last position up to `cut` where a token ends together with a character."""
    while 0 < cut < len(token_ids) and _begins_inside(tokenizer.token_bytes[token_ids[cut]] or b""):
        cut -= 1
    return cut


def _begins_inside(data: bytes) -> bool:
    return data[:1] != b"" and data[0] & 0xC0 == 0x80
