"""JSON Schema (drafts 4 to 2020-12) as an expression: the texts of exactly the valid instances.

Every keyword is enforced, or the schema is refused with the keyword and its JSON pointer; docs/constraints.md has the
table. The stages: document (places and references), expander (what is demanded of a value itself), compiler (arrays,
objects, numbers and strings as expressions).
"""

from __future__ import annotations

from typing import Any

from lmprog_runtime.constraint.expressions import Expressions
from lmprog_runtime.constraint.json_schema.compiler import Compiler
from lmprog_runtime.constraint.json_schema.document import Document
from lmprog_runtime.constraint.json_schema.layouts import SEPARATORS
from lmprog_runtime.constraint.json_schema.options import (
    DEFAULT_LIMITS,
    Clock,
    Formats,
    Order,
    SchemaLimits,
    SchemaOptions,
)
from lmprog_runtime.constraint.json_schema.values import parse
from lmprog_runtime.errors import ConstraintInvalid

__all__ = ["SEPARATORS", "Formats", "Order", "SchemaLimits", "SchemaOptions", "compile_schema", "compile_value"]


def compile_schema(
    schema_text: str,
    expressions: Expressions,
    whitespace: str = "compact",
    *,
    order: Order = "schema",
    formats: Formats = "assert",
    exponents: bool = False,
    limits: SchemaLimits = DEFAULT_LIMITS,
    max_digits: int | None = None,
    max_items: int | None = None,
) -> int:
    """The expression whose texts are the valid instances of a schema, each in the given style.

    whitespace: "compact" (`, ` and `: `), "dense" (no blanks), "flexible", or a regular expression of blanks.
    order: "schema" writes declared members in their order and all others after them; "any" takes them as they come.
    formats: "assert" enforces the formats that the standard defines; "annotate" ignores them, as 2020-12 has it.
    exponents: whether integers may be written with one (`1e+20`), which readers such as Python's take for a float.
    max_digits, max_items: caps of numbers and of lists (see SchemaOptions).

    Raises ConstraintInvalid for a malformed schema, or one without any instance; ConstraintUnsupported for a keyword
    that cannot be enforced; ConstraintTooLarge when a limit is reached. All three name the keyword or limit, and where.
    """
    options = SchemaOptions(whitespace, order, formats, exponents, limits, max_digits, max_items)
    return compile_value(parse(schema_text), expressions, options)


def compile_value(schema: Any, expressions: Expressions, options: SchemaOptions) -> int:
    """The same for a schema that has been read (`values.parse`)."""
    options.check()
    clock = Clock(options.limits.seconds)
    document = Document(schema, options.limits.depth, clock)
    expression = Compiler(document, expressions, options, clock).compile()
    if expression == Expressions.EMPTY:
        raise ConstraintInvalid("No JSON value satisfies the schema; remove what contradicts itself.")
    return expression
