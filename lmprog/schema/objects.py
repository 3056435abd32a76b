"""Objects with named members: dataclasses, TypedDicts, and the arguments of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lmprog.errors import InvalidOutput
from lmprog.schema.forms import Definitions, Form, NamedForm, Schema, checked_object
from lmprog.schema.reading import Path, invalid


class Member(NamedTuple):
    name: str
    form: Form
    is_required: bool


class ObjectForm(NamedForm):
    members: Sequence[Member]  # set after the form was made, so that members can refer to it

    def __init__(self, name: str, description: str, build: Callable[[dict[str, Any]], Any]) -> None:
        self.name, self._description, self._build = name, description, build
        self.wanted = f"an object of {name}"
        self.kind = ""

    def body(self, definitions: Definitions) -> Schema:
        head: Schema = {"type": "object"}
        if self._description:
            head["description"] = self._description
        return {
            **head,
            "properties": {member.name: member.form.schema(definitions) for member in self.members},
            "required": [member.name for member in self.members if member.is_required],
            "additionalProperties": False,
        }

    def read(self, value: Any, path: Path) -> Any:
        given = checked_object(value, path)
        self._check_names(given, path)
        forms = {member.name: member.form for member in self.members}
        values = {name: forms[name].read(item, (*path, name)) for name, item in given.items()}
        try:
            return self._build(values)
        except InvalidOutput:
            raise
        except Exception as error:  # a class may check its values, and raise what it likes
            raise invalid(path, f"{self.name} refuses these values: {error}") from error

    def _check_names(self, given: dict[str, Any], path: Path) -> None:
        known = {member.name for member in self.members}
        for name in given:
            if name not in known:
                raise invalid(path, f"{self.name} has no member {name!r}")
        for member in self.members:
            if member.is_required and member.name not in given:
                raise invalid(path, f"{self.name} needs the member {member.name!r}")
