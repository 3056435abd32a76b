"""Forms: what a Python type looks like as JSON. Each writes its schema, and reads a JSON value as a value of its type.

A form is made from a type by `lmprog.schema.resolving`. Objects are in `lmprog.schema.objects`.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

from lmprog.errors import InvalidArgument, InvalidOutput
from lmprog.schema import moments, reading
from lmprog.schema.reading import Path, mismatch

Schema = dict[str, Any]
Kind = Literal["number", "string", "array", "object", ""]  # what limits can be put on it; "": none


class Form(ABC):
    kind: Kind = ""
    wanted: str  # for messages: "a whole number"

    @abstractmethod
    def schema(self, definitions: Definitions) -> Schema: ...

    @abstractmethod
    def read(self, value: Any, path: Path) -> Any:
        """A parsed JSON value as a value of the type. Raises InvalidOutput, which names `path`."""


class NamedForm(Form):
    """One that may be recursive: its schema stands in `$defs`, and is referred to."""

    name: str

    @abstractmethod
    def body(self, definitions: Definitions) -> Schema:
        """The schema itself."""

    def schema(self, definitions: Definitions) -> Schema:
        return definitions.reference(self)


class Definitions:
    """The `$defs` of one schema, filled while it is written."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self._names: dict[NamedForm, str] = {}
        self._uses: dict[str, int] = {}

    def reference(self, form: NamedForm) -> Schema:
        if form not in self._names:
            name = self._names[form] = self.reserve(form.name)
            self.schemas[name] = form.body(self)
        return {"$ref": f"#/$defs/{self.name_of(form)}"}

    def name_of(self, form: NamedForm) -> str:
        """The name of a form whose body is written, or being written, for one more reference to it."""
        name = self._names[form]
        self._uses[name] = self._uses.get(name, 0) + 1
        return name

    def reserve(self, wanted: str) -> str:
        """A free name like `wanted`, and a place in the order."""
        plain = re.sub(r"\W+", "_", wanted).strip("_")
        name, number = plain, 2
        while name in self.schemas:
            name, number = f"{plain}_{number}", number + 1
        self.schemas[name] = {}
        return name

    def document(self, root: Schema) -> Schema:
        """The whole schema: the root, written out unless something else refers to it, and the definitions."""
        name = root.get("$ref", "").removeprefix("#/$defs/")
        if list(root) == ["$ref"] and self._uses[name] == 1:
            root = self.schemas.pop(name)
        return {**root, "$defs": self.schemas} if self.schemas else root


class Scalar(Form):
    def __init__(self, schema: Schema, wanted: str, convert: Callable[[Any], Any], kind: Kind = "") -> None:
        self._schema, self.wanted, self._convert, self.kind = schema, wanted, convert, kind

    def schema(self, definitions: Definitions) -> Schema:  # noqa: ARG002 - scalars need none
        return dict(self._schema)

    def read(self, value: Any, path: Path) -> Any:
        try:
            return self._convert(value)
        except (ValueError, OverflowError):
            raise mismatch(path, value, self.wanted) from None


NULL = Scalar({"type": "null"}, "null", reading.as_null)
BOOLEAN = Scalar({"type": "boolean"}, "true or false", reading.as_boolean)
INTEGER = Scalar({"type": "integer"}, "a whole number", reading.as_integer, "number")
NUMBER = Scalar({"type": "number"}, "a finite number", reading.as_number, "number")
TEXT = Scalar({"type": "string"}, "a text", reading.as_text, "string")
DATE = Scalar(moments.DATE_SCHEMA, "a date like 2024-01-31", moments.as_date)
MOMENT = Scalar(moments.MOMENT_SCHEMA, "a time like 2024-01-31T12:00:00Z", moments.as_moment)
ANYTHING = Scalar({}, "anything", reading.plain)


class Constants(Form):
    """Enum and Literal: some JSON scalars, and the Python value of each."""

    def __init__(self, values: Sequence[tuple[Any, Any]], description: str = "") -> None:
        self._values = values  # (as JSON, as Python)
        self._description = description
        self.wanted = f"one of {', '.join(reading.shown(written) for written in self.written)}"

    @property
    def written(self) -> list[str | bool | int | float | None]:
        return [written for written, _ in self._values]

    def schema(self, definitions: Definitions) -> Schema:  # noqa: ARG002 - constants need none
        types = {_TYPE_NAMES[type(written)] for written in self.written}
        head: Schema = {"description": self._description} if self._description else {}
        if len(types) == 1:
            head["type"] = types.pop()
        return {**head, "const": self.written[0]} if len(self.written) == 1 else {**head, "enum": self.written}

    def read(self, value: Any, path: Path) -> Any:
        for written, meant in self._values:
            if reading.same(value, written):
                return meant
        raise mismatch(path, value, self.wanted)


_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def written_constant(value: Any, where: str) -> Any:
    """A member of an Enum or Literal as JSON."""
    plain: Any = value.value if isinstance(value, Enum) else value
    is_finite = not isinstance(plain, float) or math.isfinite(plain)
    if is_finite and isinstance(plain, str | bool | int | float | None):
        return plain
    raise InvalidArgument(f"{where} has the value {plain!r}, which JSON cannot write;", hint="use texts and numbers.")


class ListForm(Form):
    kind: Kind = "array"
    wanted = "a list"

    def __init__(self, item: Form, build: Callable[[list[Any]], Any]) -> None:
        self._item, self._build = item, build

    def schema(self, definitions: Definitions) -> Schema:
        item = self._item.schema(definitions)
        return {"type": "array", "items": item} if item else {"type": "array"}

    def read(self, value: Any, path: Path) -> Any:
        items = checked_list(value, path)
        return self._build([self._item.read(item, (*path, index)) for index, item in enumerate(items)])


class TupleForm(Form):
    """A fixed number of items, each of its own type."""

    def __init__(self, items: Sequence[Form]) -> None:
        self._items = items
        self.wanted = f"a list of {len(items)}"

    def schema(self, definitions: Definitions) -> Schema:
        count = len(self._items)
        if not count:
            return {"type": "array", "maxItems": 0}
        items = [item.schema(definitions) for item in self._items]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": count, "maxItems": count}

    def read(self, value: Any, path: Path) -> Any:
        items = checked_list(value, path)
        if len(items) != len(self._items):
            raise mismatch(path, value, self.wanted)
        return tuple(form.read(item, (*path, i)) for i, (form, item) in enumerate(zip(self._items, items, strict=True)))


def checked_list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise mismatch(path, value, "a list")
    return value


class DictForm(Form):
    kind: Kind = "object"
    wanted = "an object"

    def __init__(self, key: Form, value: Form) -> None:
        self._key, self._value = key, value

    def schema(self, definitions: Definitions) -> Schema:
        schema: Schema = {"type": "object"}
        if self._key is not TEXT:
            schema["propertyNames"] = self._key.schema(definitions)
        if value := self._value.schema(definitions):
            schema["additionalProperties"] = value
        return schema

    def read(self, value: Any, path: Path) -> Any:
        members = checked_object(value, path)
        return {self._key.read(k, path): self._value.read(v, (*path, k)) for k, v in members.items()}


def checked_object(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise mismatch(path, value, "an object")
    return value


class UnionForm(Form):
    """The first alternative, in the order declared, that the value fits."""

    def __init__(self, alternatives: Sequence[Form]) -> None:
        self._alternatives = alternatives
        self.wanted = " or ".join(form.wanted for form in alternatives)

    def schema(self, definitions: Definitions) -> Schema:
        return {"anyOf": [form.schema(definitions) for form in self._alternatives]}

    def read(self, value: Any, path: Path) -> Any:
        errors: list[InvalidOutput] = []
        for form in self._alternatives:
            try:
                return form.read(value, path)
            except InvalidOutput as error:
                errors.append(error)
        raise _closest(errors) or mismatch(path, value, self.wanted)


def _closest(errors: Sequence[InvalidOutput]) -> InvalidOutput | None:
    """The error of the alternative that fits best, if one fits better than the others: it fails deeper inside."""
    depths = [error.pointer.count("/") for error in errors]
    deepest = max(depths)
    return errors[depths.index(deepest)] if depths.count(deepest) == 1 else None


class AliasForm(NamedForm):
    """A type that has a name of its own and may refer to itself."""

    target: Form

    def __init__(self, name: str) -> None:
        self.name = self.wanted = name

    def body(self, definitions: Definitions) -> Schema:
        return self.target.schema(definitions)

    def read(self, value: Any, path: Path) -> Any:
        return self.target.read(value, path)


class Described(Form):
    def __init__(self, form: Form, description: str) -> None:
        self._form, self._description = form, description
        self.kind, self.wanted = form.kind, form.wanted

    def schema(self, definitions: Definitions) -> Schema:
        return {**self._form.schema(definitions), "description": self._description}

    def read(self, value: Any, path: Path) -> Any:
        return self._form.read(value, path)


class Limited(Form):
    """Annotated with limits: JSON Schema keywords that the value must also hold to."""

    def __init__(self, form: Form, limits: Mapping[str, Any]) -> None:
        self._form, self._limits = form, limits
        self.kind, self.wanted = form.kind, form.wanted

    def schema(self, definitions: Definitions) -> Schema:
        return {**self._form.schema(definitions), **self._limits}

    def read(self, value: Any, path: Path) -> Any:
        found = self._form.read(value, path)
        for keyword, limit in self._limits.items():
            if not HOLDS[keyword](found, limit):
                raise reading.invalid(path, f"{reading.shown(value)} breaks {keyword} {limit!r}")
        return found


def _is_multiple(value: Any, step: Any) -> bool:
    from fractions import Fraction  # exact: 0.3 is three times 0.1, as texts

    return Fraction(str(value)) % Fraction(str(step)) == 0


HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, limit: value >= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "multipleOf": _is_multiple,
    **dict.fromkeys(("minLength", "minItems", "minProperties"), lambda value, limit: len(value) >= limit),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), lambda value, limit: len(value) <= limit),
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
}
