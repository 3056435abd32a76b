"""A schema in words, for prompts: what to write, with the descriptions and docstrings of the types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "pattern": "matching {}",
    "format": "format {}",
}
_PLAIN = {"string": "text", "integer": "whole number", "boolean": "true or false"}
_INDENT = "  "


def describe_schema(schema: Any) -> str:
    """One line for each member, indented by depth. An object that has a name is written out where it comes first."""
    if not isinstance(schema, dict):
        return "any JSON value" if schema else "nothing"
    return _Writer(schema.get("$defs", {})).describe(schema)


class _Writer:
    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        self._written: set[str] = set()

    def describe(self, schema: Schema) -> str:
        lines = [f"{self._kind(schema)}{_remark(self._resolved(schema))}", *self._inside(schema, "")]
        return "\n".join(lines)

    def _resolved(self, schema: Any) -> Schema:
        """With a reference replaced by what it refers to; what stands beside it is stronger."""
        if not isinstance(schema, dict):
            return {} if schema else {"not": {}}
        name = _name(schema)
        return {**self._definitions[name], **schema} if name in self._definitions else schema

    def _kind(self, schema: Any) -> str:
        name = _name(schema)
        schema = self._resolved(schema)
        if name and "properties" in schema:
            return name
        if "const" in schema:
            return json.dumps(schema["const"], ensure_ascii=False)
        if "enum" in schema:
            return " or ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
        if (alternatives := schema.get("anyOf") or schema.get("oneOf")) is not None:
            return " or ".join(self._kind(each) for each in alternatives)
        if schema.get("type") == "array":
            return self._list_kind(schema)
        if schema.get("type") == "object" and "properties" not in schema:
            return f"object of {self._kind(schema.get('additionalProperties', True))} by name"
        kind = schema.get("type", "any JSON value")
        return " or ".join(map(str, kind)) if isinstance(kind, list) else _PLAIN.get(kind, str(kind))

    def _list_kind(self, schema: Schema) -> str:
        if "prefixItems" in schema:
            return f"list of {', '.join(self._kind(item) for item in schema['prefixItems'])}"
        return f"list of {self._kind(schema['items'])}" if "items" in schema else "list"

    def _inside(self, schema: Any, indent: str) -> Iterator[str]:
        """Lines for the members of all objects that stand in a value."""
        name = _name(schema)
        if name in self._written:
            return
        self._written.update({name} - {""})
        schema = self._resolved(schema)
        required = schema.get("required", ())
        for member, part in schema.get("properties", {}).items():
            yield f"{indent}- {member} ({self._about(part, member in required)}){_remark(self._resolved(part))}"
            yield from self._inside(part, indent + _INDENT)
        for part in self._parts(schema):
            yield from self._inside(part, indent)

    def _about(self, schema: Any, is_required: bool) -> str:
        resolved = self._resolved(schema)
        limits = [text.format(resolved[keyword]) for keyword, text in _LIMITS.items() if keyword in resolved]
        return ", ".join([self._kind(schema), *limits, *([] if is_required else ["optional"])])

    def _parts(self, schema: Schema) -> list[Any]:
        several = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("prefixItems", ())]
        return [
            *several,
            *(schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)),
        ]


def _name(schema: Any) -> str:
    """Of the definition that a schema refers to, or empty."""
    return str(schema.get("$ref", "")).removeprefix("#/$defs/") if isinstance(schema, dict) else ""


def _remark(schema: Schema) -> str:
    description = str(schema.get("description", "")).strip()
    return ": " + " ".join(description.split()) if description else ""
