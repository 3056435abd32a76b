"""Sets of characters by property, as ranges. Made when first asked for, from what Python's `re` and `unicodedata` say,
so that they equal Python's by construction; scanning all of Unicode this way takes some ten milliseconds."""

from __future__ import annotations

import re
import unicodedata
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lmprog_runtime.constraint.regex.syntax import Ranges

EVERYTHING: Ranges = ((0, 0x10FFFF),)
DIGITS: Ranges = ((0x30, 0x39),)
ASCII_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
ECMA_SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
NEWLINE: Ranges = ((0x0A, 0x0A),)
ECMA_NEWLINES: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))

_UNCASED = ((0x3400, 0x9FFF), (0xAC00, 0xD7A3), (0xD800, 0xDFFF), (0x20000, 0x10FFFF))
"""Blocks without upper and lower case, left out of the search for cased characters."""

_ASSIGNED = ((0x00000, 0x40000), (0xE0000, 0xE1000))
"""Half-open. Outside lie only unassigned code points and the two private-use planes."""

_CATEGORY_NAMES = {
    "letter": "L",
    "cased_letter": "LC",
    "uppercase_letter": "Lu",
    "lowercase_letter": "Ll",
    "titlecase_letter": "Lt",
    "modifier_letter": "Lm",
    "other_letter": "Lo",
    "mark": "M",
    "combining_mark": "M",
    "nonspacing_mark": "Mn",
    "spacing_mark": "Mc",
    "enclosing_mark": "Me",
    "number": "N",
    "decimal_number": "Nd",
    "digit": "Nd",
    "letter_number": "Nl",
    "other_number": "No",
    "punctuation": "P",
    "punct": "P",
    "connector_punctuation": "Pc",
    "dash_punctuation": "Pd",
    "open_punctuation": "Ps",
    "close_punctuation": "Pe",
    "initial_punctuation": "Pi",
    "final_punctuation": "Pf",
    "other_punctuation": "Po",
    "symbol": "S",
    "math_symbol": "Sm",
    "currency_symbol": "Sc",
    "modifier_symbol": "Sk",
    "other_symbol": "So",
    "separator": "Z",
    "space_separator": "Zs",
    "line_separator": "Zl",
    "paragraph_separator": "Zp",
    "other": "C",
    "control": "Cc",
    "cntrl": "Cc",
    "format": "Cf",
    "surrogate": "Cs",
    "private_use": "Co",
    "unassigned": "Cn",
}


def union(*sets: Ranges) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(r for ranges in sets for r in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def invert(ranges: Ranges) -> Ranges:
    gaps = []
    start = 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= 0x10FFFF:
        gaps.append((start, 0x10FFFF))
    return tuple(gaps)


def intersection(a: Ranges, b: Ranges) -> Ranges:
    return invert(union(invert(a), invert(b)))


@cache
def _all_characters() -> str:
    """Every code point once, at its own index."""
    return np.arange(0x110000, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@cache
def matched_by(pattern: str) -> Ranges:
    """The characters that a one-character pattern of Python's `re` matches."""
    return tuple((m.start(), m.end() - 1) for m in re.finditer(f"(?:{pattern})+", _all_characters()))


@cache
def _categories() -> tuple[tuple[str, ...], NDArray[np.uint8]]:
    """The names of the general categories, and every code point's as an index into them."""
    names = sorted({unicodedata.category(c) for c in map(chr, range(0x3000))} | {"Cs", "Co", "Cn"})
    index = {name: i for i, name in enumerate(names)}
    codes = np.full(0x110000, index["Cn"], np.uint8)
    codes[0xF0000:0xFFFFE] = codes[0x100000:0x10FFFE] = index["Co"]
    for low, high in _ASSIGNED:
        block = _all_characters()[low:high]
        codes[low:high] = np.fromiter(map(index.__getitem__, map(unicodedata.category, block)), np.uint8, high - low)
    return tuple(names), codes


def _ranges_where(condition: NDArray[np.bool_]) -> Ranges:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], condition.astype(np.int8), [0]))))
    return tuple((int(a), int(b) - 1) for a, b in zip(edges[::2], edges[1::2], strict=True))


@cache
def by_property(name: str) -> Ranges | None:
    r"""The set of \p{name}: general categories by short or long name, ASCII, Any, Assigned, Uppercase, Lowercase,
    White_Space; None when it is not known here."""
    value = name.split("=", 1)[1] if name.lower().startswith(("gc=", "general_category=")) else name
    if value in ("Any", "ASCII"):
        return EVERYTHING if value == "Any" else ((0, 0x7F),)
    if value == "Assigned":
        return invert(by_property("Cn") or ())
    if value in ("Uppercase", "Lowercase", "White_Space"):
        return _by_method(value)
    category = _CATEGORY_NAMES.get(value.lower().replace(" ", "_"), value)
    names, codes = _categories()
    wanted = ("Lu", "Ll", "Lt") if category == "LC" else (category,)
    chosen = [i for i, known in enumerate(names) if known.startswith(wanted) and category]
    return _ranges_where(np.isin(codes, chosen)) if chosen else None


def _by_method(name: str) -> Ranges:
    if name == "White_Space":  # str.isspace also counts the four separators U+001C to U+001F
        return intersection(matched_by(r"\s"), invert(((0x1C, 0x1F),)))
    test = str.isupper if name == "Uppercase" else str.islower
    return union(tuple((ord(c), ord(c)) for c in _all_characters() if test(c)))


@cache
def _cased() -> str:
    """Characters that differ from their own upper or lower case: the ones on which ignoring case has an effect."""
    blocks = invert(_UNCASED)
    candidates = (chr(c) for low, high in blocks for c in range(low, high + 1))
    return "".join(c for c in candidates if c.lower() != c or c.upper() != c)


@cache
def ignoring_case(ranges: Ranges, ascii_only: bool) -> Ranges:
    """The set under the flag `i`. Python's `re` is asked about the cased characters; the others stay as they are."""
    cased = union(tuple((ord(c), ord(c)) for c in _cased()))
    affected = intersection(ranges, cased)
    if not affected:
        return ranges
    members = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in affected)
    pattern = re.compile(f"(?{'a' if ascii_only else ''}i)[{members}]")
    matched = tuple((ord(c), ord(c)) for c in pattern.findall(_cased()))
    return union(ranges, matched)


def word(ascii_only: bool) -> Ranges:
    return ASCII_WORD if ascii_only else matched_by(r"\w")


def digit(ascii_only: bool) -> Ranges:
    return DIGITS if ascii_only else matched_by(r"\d")


def space(ascii_only: bool) -> Ranges:
    return ASCII_SPACE if ascii_only else matched_by(r"\s")
