"""Reads a pattern character by character, and the escapes in it, which are the same inside and outside of classes."""

from __future__ import annotations

import unicodedata
from typing import NamedTuple, NoReturn

from lmprog_runtime.constraint.regex import unicode_sets
from lmprog_runtime.constraint.regex.errors import malformed, unsupported
from lmprog_runtime.constraint.regex.syntax import Ranges

_CONTROL = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_OCTAL = "01234567"
_HEX = "0123456789abcdefABCDEF"
_ASCII_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Flags(NamedTuple):
    """The inline flags in force at a place."""

    ignore_case: bool = False
    multiline: bool = False
    dot_all: bool = False
    verbose: bool = False
    ascii_only: bool = False


class Escape(NamedTuple):
    """What a backslash sequence stands for: one character, or a set."""

    ranges: Ranges
    is_character: bool


class Scanner:
    """A position in a pattern. `ecma`: the dialect of JSON Schema instead of Python's."""

    def __init__(self, pattern: str, ecma: bool) -> None:
        self.pattern, self.ecma, self.position = pattern, ecma, 0

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self.pattern)

    def peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def take(self) -> str:
        character = self.peek()
        self.position += 1
        return character

    def skip(self, text: str) -> bool:
        """Move past `text` if it comes next."""
        found = self.pattern.startswith(text, self.position)
        if found:
            self.position += len(text)
        return found

    def take_until(self, end: str, what: str, start: int) -> str:
        stop = self.pattern.find(end, self.position)
        if stop < 0:
            malformed(self.pattern, start, f"{what} without its {end!r}")
        text = self.pattern[self.position : stop]
        self.position = stop + 1
        return text

    def take_digits(self, most: int, alphabet: str) -> str:
        start = self.position
        while self.position - start < most and self.peek() and self.peek() in alphabet:
            self.position += 1
        return self.pattern[start : self.position]

    # -- escapes ----------------------------------------------------------------------------------------------------

    def take_escape(self, flags: Flags, in_class: bool) -> Escape:
        """After a backslash. Anchors (\\b, \\A ...) outside classes and back-references are the parser's."""
        start = self.position - 1
        if self.is_at_end:
            malformed(self.pattern, start, "A backslash with nothing after it")
        letter = self.take()
        if letter in "dDwWsS":
            return Escape(self._class_escape(letter, flags), is_character=False)
        if letter in "pP":
            return Escape(self._property(letter, start), is_character=False)
        return Escape(_single(self._character(letter, start, in_class)), is_character=True)

    def _class_escape(self, letter: str, flags: Flags) -> Ranges:
        ascii_only = flags.ascii_only or self.ecma
        kind = letter.lower()
        if kind == "d":
            ranges = unicode_sets.digit(ascii_only)
        elif kind == "w":
            ranges = unicode_sets.word(ascii_only)
        else:
            ranges = unicode_sets.ECMA_SPACE if self.ecma else unicode_sets.space(ascii_only)
        return unicode_sets.invert(ranges) if letter.isupper() else ranges

    def _property(self, letter: str, start: int) -> Ranges:
        if not self.skip("{"):
            malformed(self.pattern, start, f"\\{letter} without a property name in braces")
        name = self.take_until("}", "A property name", start)
        ranges = unicode_sets.by_property(name.removeprefix("^"))
        if ranges is None:
            malformed(self.pattern, start, f"An unknown Unicode property {name!r}")
        return unicode_sets.invert(ranges) if (letter == "P") != name.startswith("^") else ranges

    def _character(self, letter: str, start: int, in_class: bool) -> int:
        if letter in _CONTROL and not (self.ecma and letter == "a"):
            return _CONTROL[letter]
        if letter in "xuU" or (letter == "c" and self.ecma) or (letter == "N" and not self.ecma):
            return self._coded(letter, start)
        if letter == "b" and in_class:
            return 8
        if letter in "0123456789":
            return self._octal(letter, start)
        if letter in _ASCII_LETTERS:
            self._bad_letter(letter, start)
        return ord(letter)

    def _bad_letter(self, letter: str, start: int) -> NoReturn:
        if letter == "k" and self.ecma:
            unsupported(self.pattern, start, "The back-reference \\k")
        malformed(self.pattern, start, f"The unknown escape \\{letter}")

    def _coded(self, letter: str, start: int) -> int:
        if letter == "c":
            name = self.take()
            if name not in _ASCII_LETTERS:
                malformed(self.pattern, start, "\\c without a letter")
            return ord(name) & 31
        if letter == "N":
            return self._named(start)
        if letter == "u" and self.ecma and self.skip("{"):
            return self._checked_code(self.take_until("}", "\\u{", start), start)
        if letter == "U" and self.ecma:
            malformed(self.pattern, start, "The unknown escape \\U")
        length = {"x": 2, "u": 4, "U": 8}[letter]
        digits = self.take_digits(length, _HEX)
        if len(digits) != length:
            malformed(self.pattern, start, f"\\{letter} without its {length} hexadecimal digits")
        return self._with_low_surrogate(self._checked_code(digits, start))

    def _checked_code(self, digits: str, start: int) -> int:
        if not digits or set(digits) - set(_HEX) or int(digits, 16) > 0x10FFFF:
            malformed(self.pattern, start, f"{digits!r} is no code point")
        return int(digits, 16)

    def _with_low_surrogate(self, code: int) -> int:
        """ECMAScript writes a character beyond U+FFFF as two escapes."""
        if self.ecma and 0xD800 <= code <= 0xDBFF and self.pattern.startswith("\\u", self.position):
            low = self.pattern[self.position + 2 : self.position + 6]
            if len(low) == 4 and not set(low) - set(_HEX) and 0xDC00 <= int(low, 16) <= 0xDFFF:
                self.position += 6
                return 0x10000 + ((code - 0xD800) << 10) + int(low, 16) - 0xDC00
        return code

    def _named(self, start: int) -> int:
        if not self.skip("{"):
            malformed(self.pattern, start, "\\N without a character name in braces")
        name = self.take_until("}", "A character name", start)
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            malformed(self.pattern, start, f"An unknown character name {name!r}")

    def _octal(self, first: str, start: int) -> int:
        """\\0, \\012, \\123. The parser has already taken out what is a back-reference."""
        if self.ecma and first != "0":
            malformed(self.pattern, start, f"The escape \\{first} in a class")
        digits = first + ("" if self.ecma else self.take_digits(2, _OCTAL))
        if set(digits) - set(_OCTAL) or int(digits, 8) > 0o377:
            malformed(self.pattern, start, f"The octal escape \\{digits}")
        return int(digits, 8)


def _single(code: int) -> Ranges:
    return ((code, code),)
