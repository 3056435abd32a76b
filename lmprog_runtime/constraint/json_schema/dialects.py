"""The drafts of JSON Schema: which keywords each has, what their values must look like, and where subschemas are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from lmprog_runtime.constraint.json_schema.values import is_count, is_number


class Dialect(NamedTuple):
    """What differs between drafts. `draft` is 4, 6, 7, 2019 or 2020."""

    draft: int
    is_declared: bool  # by $schema; an undeclared schema is 2020-12 plus the older spellings that cannot conflict

    @property
    def id_keyword(self) -> str:
        return "id" if self.draft == 4 else "$id"

    @property
    def ref_hides_siblings(self) -> bool:
        """Up to draft 7, keywords next to $ref are ignored by the standard."""
        return self.draft <= 7

    @property
    def has_item_lists(self) -> bool:
        """Whether `items` may be a list (and `additionalItems` its rest)."""
        return self.draft <= 2019 or not self.is_declared


UNDECLARED = Dialect(2020, is_declared=False)

_SCHEMA_URIS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
    "http://json-schema.org/schema": 2020,
}


def declared_dialect(uri: str) -> Dialect | None:
    """The dialect that a `$schema` URI names; None for one that we do not know. http and https are taken as one."""
    plain = uri.rstrip("#")
    draft = _SCHEMA_URIS.get(plain) or _SCHEMA_URIS.get(_other_scheme(plain))
    return Dialect(draft, is_declared=True) if draft else None


def _other_scheme(uri: str) -> str:
    return "http" + uri[5:] if uri.startswith("https:") else "https" + uri[4:]


FIRST_DRAFT = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "minContains": 2019,
    "maxContains": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "$recursiveRef": 2019,
    "prefixItems": 2020,
    "$dynamicRef": 2020,
}
"""Assertions that younger drafts brought: an older dialect does not know them."""

ONE, MANY, NAMED, ONE_OR_MANY, NAMED_OR_NAMES = range(5)

SUBSCHEMAS = {
    "not": ONE,
    "if": ONE,
    "then": ONE,
    "else": ONE,
    "additionalProperties": ONE,
    "additionalItems": ONE,
    "unevaluatedProperties": ONE,
    "unevaluatedItems": ONE,
    "propertyNames": ONE,
    "contains": ONE,
    "contentSchema": ONE,
    "items": ONE_OR_MANY,
    "allOf": MANY,
    "anyOf": MANY,
    "oneOf": MANY,
    "prefixItems": MANY,
    "properties": NAMED,
    "patternProperties": NAMED,
    "dependentSchemas": NAMED,
    "$defs": NAMED,
    "definitions": NAMED,
    "dependencies": NAMED_OR_NAMES,
}
"""Where a schema holds schemas."""

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_limit(value: Any) -> bool:
    return is_number(value) or isinstance(value, bool)  # draft 4 writes exclusiveMinimum: true


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_name_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_names(names) for names in value.values())


class Shape(NamedTuple):
    """What a keyword's value must be."""

    fits: Callable[[Any], bool]
    wanted: str


_COUNT = Shape(is_count, "a non-negative integer")
_NUMBER = Shape(is_number, "a number")
_TEXT = Shape(_is_text, "a string")

_COUNTED = (
    *("minLength", "maxLength", "minItems", "maxItems"),
    *("minContains", "maxContains", "minProperties", "maxProperties"),
)

SHAPES = {
    "type": Shape(_is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": Shape(_is_list, "a list"),
    "required": Shape(_is_names, "a list of names"),
    "dependentRequired": Shape(_is_name_map, "an object of lists of names"),
    "pattern": _TEXT,
    "format": _TEXT,
    "$ref": _TEXT,
    "$dynamicRef": _TEXT,
    "$recursiveRef": _TEXT,
    "$anchor": _TEXT,
    "$dynamicAnchor": _TEXT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": Shape(_is_limit, "a number"),
    "exclusiveMaximum": Shape(_is_limit, "a number"),
    "multipleOf": Shape(_is_positive, "a number above zero"),
    "uniqueItems": Shape(_is_flag, "true or false"),
} | dict.fromkeys(_COUNTED, _COUNT)
