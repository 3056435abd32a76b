"""Regular expressions: the syntax of Python's `re` (full match), or ECMAScript's as JSON Schema uses it (search)."""

from lmprog_runtime.constraint.regex.translate import translate

__all__ = ["translate"]
