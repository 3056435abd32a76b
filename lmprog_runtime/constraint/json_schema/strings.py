"""Strings as JSON text: patterns, formats, lengths and constants, put together as regular languages.

Languages are of the text between the quotes, in the one spelling that serialisers use (escaped only where JSON demands
it), so that complements and excluded names mean what they say: no other spelling can smuggle a text in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from json.encoder import encode_basestring

from lmprog_runtime.constraint.expressions import Encoding, Expressions
from lmprog_runtime.constraint.json_schema.facets import StringFacet
from lmprog_runtime.constraint.json_schema.formats import FORMATS, UNENFORCEABLE
from lmprog_runtime.errors import ConstraintUnsupported, RequestRefused

ENCODING = Encoding.JSON_PLAIN


def encoded(text: str) -> bytes:
    """The text between the quotes. Raises ConstraintUnsupported for text that UTF-8 cannot hold."""
    try:
        return encode_basestring(text)[1:-1].encode()
    except UnicodeEncodeError:
        raise ConstraintUnsupported(
            f"The schema holds the string {text!r}, half of a surrogate pair, which no text can contain; remove it."
        ) from None


class Strings:
    """Languages and texts of strings, each built once."""

    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._patterns: dict[str, int] = {}
        self._bodies: dict[StringFacet, int] = {}
        self.quote = expressions.literal(b'"')

    @cached_property
    def character(self) -> int:
        return self._expressions.any_character(ENCODING)

    @cached_property
    def anything(self) -> int:
        return self._expressions.repeat(self.character, 0)

    # -- languages --------------------------------------------------------------------------------------------------

    def pattern(self, pattern: str, where: str) -> int:
        """Strings in which an ECMA-262 pattern is found somewhere. `where` is its JSON pointer, for messages."""
        found = self._patterns.get(pattern)
        if found is None:
            found = self._patterns[pattern] = self._search(pattern, where)
        return found

    def _search(self, pattern: str, where: str) -> int:
        try:
            return self._expressions.regex(pattern, search=True, ecma=True, encode=ENCODING)
        except RequestRefused as error:
            raise type(error)(f"The pattern at {where} is refused. {error}") from error

    def format(self, name: str, where: str) -> int | None:
        """Strings of a format; None for one that the standard does not define, which is an annotation."""
        if name in UNENFORCEABLE:
            raise ConstraintUnsupported(f"format {name!r} at {where} cannot be enforced; remove it or use a pattern.")
        found = FORMATS.get(name)
        return None if found is None else self.pattern(found, where)

    def body(self, facet: StringFacet) -> int:
        """The text between the quotes of the strings of a facet."""
        found = self._bodies.get(facet)
        if found is None:
            found = self._bodies[facet] = self._body(facet)
        return found

    def _body(self, facet: StringFacet) -> int:
        expressions = self._expressions
        if facet.values is not None:
            return expressions.words([encoded(value) for value in self._allowed(facet)])
        parts = sorted(facet.languages)
        if facet.low or facet.high is not None or not parts:
            parts.append(expressions.repeat(self.character, facet.low, facet.high))
        parts += [expressions.complement(language) for language in sorted(facet.refused)]
        if facet.excluded:
            parts.append(self.other_than(sorted(facet.excluded)))
        return self.intersection(parts)

    def other_than(self, texts: Iterable[str]) -> int:
        """Everything but the texts; to be intersected with what a string may be."""
        return self._expressions.complement(self._expressions.words([encoded(text) for text in texts]))

    def intersection(self, parts: Sequence[int]) -> int:
        """What is in all languages; EMPTY when that is found to be nothing."""
        if len(parts) == 1:
            return parts[0]
        language = self._expressions.intersect(*parts)
        return Expressions.EMPTY if self._expressions.is_empty(language) else language

    def language(self, facets: Iterable[StringFacet]) -> int:
        return self._expressions.alternate(self.body(facet) for facet in facets)

    # -- constants --------------------------------------------------------------------------------------------------

    def values(self, facets: Iterable[StringFacet]) -> tuple[str, ...] | None:
        """All strings of the facets, when they are listed."""
        found: dict[str, None] = {}
        for facet in facets:
            if facet.values is None:
                return None
            found.update(dict.fromkeys(self._allowed(facet)))
        return tuple(found)

    def listed(self, language: int, most: int) -> list[str] | None:
        """All texts of a language, shortest first; None when they, or their beginnings, are more than `most`."""
        arena, found = self._expressions.arena, []
        level = {b"": language}
        while level and len(level) <= most:
            found += [data.decode() for data, state in level.items() if arena.is_nullable(state)]
            level = {
                data + bytes([byte]): after
                for data, state in level.items()
                for byte in range(256)
                if (after := arena.step(state, bytes([byte]))) and not self._expressions.is_empty(after)
            }
            if len(found) > most or any(len(data) > most for data in level):
                return None
        return None if level else [json.loads(f'"{text}"') for text in found]

    def _allowed(self, facet: StringFacet) -> list[str]:
        return [value for value in facet.values or () if self._satisfies(value, facet)]

    def _satisfies(self, value: str, facet: StringFacet) -> bool:
        if len(value) < facet.low or (facet.high is not None and len(value) > facet.high) or value in facet.excluded:
            return False
        if not facet.languages and not facet.refused:
            return True
        return self.is_in_all(value, facet.languages) and self.is_in_none(value, facet.refused)

    def is_in_all(self, text: str, languages: Iterable[int]) -> bool:
        data = encoded(text)
        return all(self._expressions.matches(language, data) for language in languages)

    def is_in_none(self, text: str, languages: Iterable[int]) -> bool:
        data = encoded(text)
        return not any(self._expressions.matches(language, data) for language in languages)

    # -- texts ------------------------------------------------------------------------------------------------------

    def constant(self, text: str) -> int:
        """A string, quotes and all."""
        return self._expressions.literal(b'"' + encoded(text) + b'"')

    def text(self, facet: StringFacet) -> int:
        """The strings of a facet, quotes and all; EMPTY when there are none."""
        return self.quoted(self.body(facet), is_listed=facet.values is not None)

    def quoted(self, body: int, is_listed: bool = False) -> int:
        expressions = self._expressions
        rest = expressions.concat(body, self.quote)
        return expressions.concat(self.quote, rest if is_listed else expressions.lexeme(rest))
