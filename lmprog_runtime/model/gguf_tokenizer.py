"""Builds tokenizer.json and tokenizer_config.json from the vocabulary that a GGUF file carries.

Two kinds exist in the Llama family: byte-level BPE ("gpt2" in GGUF), whose way of cutting text into words is named by
`tokenizer.ggml.pre`, and SentencePiece BPE ("llama"), whose merges follow from the scores of its pieces. The names and
their patterns are llama.cpp's; a name that is not in the table is refused, because its text would be cut wrongly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmprog_runtime.errors import ModelUnsupported

Metadata = Mapping[str, Any]
Json = dict[str, Any]

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

_SPACE_MARK = "▁"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, cuts_words: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cuts_words}


def _cut_by(pattern: str) -> Json:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(cuts_words=False)]}


_DIGITS = {"type": "Digits", "individual_digits": True}
_DIGITS_THEN_WORDS = {"type": "Sequence", "pretokenizers": [_DIGITS, _byte_level(cuts_words=True)]}

_CUTTERS: dict[str, Json] = {
    "gpt-2": _byte_level(cuts_words=True),
    "smollm": _DIGITS_THEN_WORDS,
    "starcoder": _DIGITS_THEN_WORDS,
    "refact": _DIGITS_THEN_WORDS,
    "llama-bpe": _cut_by(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"),
    "qwen2": _cut_by(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"),
}
_IGNORES_MERGES = frozenset({"llama-bpe"})  # a word that is a token is that token, whatever the merges say
_COMPOSES = frozenset({"qwen2"})  # text is put into Unicode normal form C first
_ADDS_BOS = frozenset({"llama-bpe"})


def write_tokenizer(metadata: Metadata, target: Path) -> None:
    """Write both files into `target`. Raises ModelUnsupported for a kind of tokenizer that is not in the tables."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _BUILDERS:
        raise ModelUnsupported(f"The GGUF file has a tokenizer of kind {kind!r}; known: {', '.join(_BUILDERS)}.")
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata),
        "post_processor": _post_processor(metadata),
        **_BUILDERS[kind](metadata),
    }
    (target / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    config = json.dumps(_config(metadata), ensure_ascii=False, indent=2)
    (target / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")


def special_ids(metadata: Metadata) -> Json:
    """bos_token_id, eos_token_id (a list where a turn ends with another token than a text) and pad_token_id."""
    found = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIALS.items()}
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    distinct = list(dict.fromkeys(end for end in ends if end is not None))
    return {
        "bos_token_id": found["bos_token"],
        "eos_token_id": distinct[0] if len(distinct) == 1 else distinct or None,
        "pad_token_id": found["pad_token"],
    }


_SPECIALS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def _config(metadata: Metadata) -> Json:
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIALS.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: tokens[token_id] for name, token_id in ids.items() if token_id is not None},
        "chat_template": metadata.get("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata[f"{metadata['general.architecture']}.context_length"],
    }


def _types(metadata: Metadata) -> Sequence[int]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)


def _added_tokens(metadata: Metadata) -> list[Json]:
    """Control and user-defined tokens, and the unused ones before the last of them, which keep its place."""
    kinds = _types(metadata)
    added = [index for index, kind in enumerate(kinds) if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    unused = [index for index, kind in enumerate(kinds) if kind == _UNUSED and index < max(added, default=0)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {
            "id": index,
            "content": metadata["tokenizer.ggml.tokens"][index],
            **flags,
            "special": kinds[index] != _USER_DEFINED,
        }
        for index in sorted([*added, *unused])
    ]


def _vocabulary(metadata: Metadata) -> dict[str, int]:
    """All tokens up to the last that text can use: a tail of added and unused ones is not part of the BPE model."""
    kinds = _types(metadata)
    end = max(index for index, kind in enumerate(kinds) if kind in (_NORMAL, _BYTE)) + 1
    return {token: token_id for token_id, token in enumerate(metadata["tokenizer.ggml.tokens"][:end])}


def _post_processor(metadata: Metadata) -> Json | None:
    kind, cutter = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or cutter in _ADDS_BOS)
    if not adds_bos:
        return None
    bos_id = metadata["tokenizer.ggml.bos_token_id"]
    bos = metadata["tokenizer.ggml.tokens"][bos_id]
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    mark = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [mark, first],
        "pair": [mark, first, mark, second],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _byte_level_bpe(metadata: Metadata) -> Json:
    cutter = metadata.get("tokenizer.ggml.pre")
    if cutter not in _CUTTERS:
        known = ", ".join(_CUTTERS)
        raise ModelUnsupported(f"The GGUF file cuts text into words in the way {cutter!r}; known: {known}.")
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    return {
        "normalizer": {"type": "NFC"} if cutter in _COMPOSES else None,
        "pre_tokenizer": _CUTTERS[cutter],
        "decoder": _byte_level(cuts_words=True),
        "model": _bpe(_vocabulary(metadata), merges, ignore_merges=cutter in _IGNORES_MERGES),
    }


def _sentencepiece_bpe(metadata: Metadata) -> Json:
    vocabulary = _vocabulary(metadata)
    starts_with_space = metadata.get("tokenizer.ggml.add_space_prefix", True)
    prepend = [{"type": "Prepend", "prepend": _SPACE_MARK}] if starts_with_space else []
    mark_spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if starts_with_space else []
    show_spaces = {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "}
    unknown = metadata["tokenizer.ggml.tokens"][metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*prepend, mark_spaces]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [show_spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]},
        "model": _bpe(vocabulary, _merges_by_score(metadata), unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def _merges_by_score(metadata: Metadata) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, the best-scored piece first: the order in which SentencePiece merges."""
    kinds, scores = _types(metadata), metadata["tokenizer.ggml.scores"]
    pieces = {
        token: scores[index]
        for index, token in enumerate(metadata["tokenizer.ggml.tokens"])
        if kinds[index] in (_NORMAL, _USER_DEFINED)
    }
    ranked = sorted(pieces, key=lambda piece: -pieces[piece])
    return [
        (piece[:cut], piece[cut:])
        for piece in ranked
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]


def _bpe(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]], **settings: Any) -> Json:
    defaults = {"dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", **defaults, **settings, "vocab": vocabulary, "merges": merges}


_BUILDERS = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
