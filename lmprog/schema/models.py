"""Pydantic models (version 2), by the methods that they have. Pydantic is never imported unless a type came from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from lmprog.errors import InvalidArgument, InvalidOutput
from lmprog.schema.forms import Definitions, NamedForm, Schema
from lmprog.schema.reading import Path, invalid, with_integers

_NAMED = ("properties", "patternProperties", "$defs")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames")


def is_model(spec: Any) -> bool:
    return callable(getattr(spec, "model_json_schema", None)) and callable(getattr(spec, "model_validate_json", None))


def is_pydantic_dataclass(spec: Any) -> bool:
    return isinstance(spec, type) and hasattr(spec, "__pydantic_validator__") and not is_model(spec)


class ModelForm(NamedForm):
    """The schema is pydantic's own, in validation mode and by alias, except that objects are closed where the model
    would only drop what it does not know: tokens for members that are thrown away are a waste."""

    def __init__(self, name: str, make_schema: Callable[[], Schema], validate_json: Callable[[str], Any]) -> None:
        self.name, self._make_schema, self._validate_json = name, make_schema, validate_json
        self.wanted = f"an object of {name}"

    @classmethod
    def of_model(cls, model: Any) -> ModelForm:
        return cls(model.__name__, model.model_json_schema, model.model_validate_json)

    @classmethod
    def of_dataclass(cls, spec: Any) -> ModelForm:
        from pydantic import TypeAdapter

        adapter: TypeAdapter[Any] = TypeAdapter(spec)
        return cls(spec.__name__, adapter.json_schema, adapter.validate_json)

    def body(self, definitions: Definitions) -> Schema:
        schema = self._own_schema()
        defined = schema.pop("$defs", {})
        names = {}
        if schema.get("$ref") == f"#/$defs/{self.name}":  # a recursive model is one of its own definitions
            schema = defined.pop(self.name)
            names[self.name] = definitions.name_of(self)
        for name in defined:
            names[name] = definitions.reserve(name)
        for name, part in defined.items():
            definitions.schemas[names[name]] = _adapted(part, names)
        return dict(_adapted(schema, names))

    def _own_schema(self) -> Schema:
        try:
            return dict(self._make_schema())
        except Exception as error:  # pydantic has many ways to say that a type has no JSON schema
            raise InvalidArgument(f"{self.name} has no JSON schema: {error}") from error

    def read(self, value: Any, path: Path) -> Any:
        try:
            return self._validate_json(json.dumps(with_integers(value)))
        except ValueError as error:
            raise _translated(error, path) from error


def _translated(error: ValueError, path: Path) -> InvalidOutput:
    """Pydantic's first complaint, with its place inside the whole output."""
    details = getattr(error, "errors", None)
    if not callable(details):
        return invalid(path, str(error))
    first: Mapping[str, Any] = details()[0]
    return invalid((*path, *first["loc"]), str(first["msg"]).rstrip("."))


def _adapted(schema: Any, names: Mapping[str, str]) -> Any:
    """References renamed, objects closed, and tagged unions without their OpenAPI tag: the tag's constants tell them
    apart, so `anyOf` says the same as `oneOf`."""
    if not isinstance(schema, dict):
        return schema
    is_tagged = "discriminator" in schema
    adapted = {
        "anyOf" if is_tagged and key == "oneOf" else key: _adapted_value(key, value, names)
        for key, value in schema.items()
        if key != "discriminator"
    }
    if "properties" in adapted and "additionalProperties" not in adapted:
        adapted["additionalProperties"] = False
    return adapted


def _adapted_value(key: str, value: Any, names: Mapping[str, str]) -> Any:
    if key == "$ref":
        name = value.removeprefix("#/$defs/")
        return f"#/$defs/{names[name]}" if name in names else value
    if key in _ONE:
        return _adapted(value, names)
    if key in _MANY:
        return [_adapted(each, names) for each in value]
    if key in _NAMED:
        return {name: _adapted(each, names) for name, each in value.items()}
    return value
